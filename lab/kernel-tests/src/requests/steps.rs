//! What a process asks, one request at a time.

use std::{
    mem,
    os::fd::{AsRawFd, RawFd},
    ptr,
};

use ekiden_host::hints::Geometry;

use crate::{
    device::request,
    processes::{fork, reap},
};

use super::{ASKERS, Asker, CONTROL_GAINED, MOST, PAGE, address};

pub(super) type Step = fn(&mut Asker);

/// What it does, with weights.
pub(super) const STEPS: &[(&str, u32, Step)] = &[
    ("opens", 6, Asker::opens),
    ("closes", 3, Asker::closes),
    ("copies", 2, Asker::copies),
    ("reads", 6, Asker::reads),
    ("seeks", 2, Asker::seeks),
    ("polls", 1, Asker::polls),
    ("creates", 6, Asker::creates),
    ("hints", 10, Asker::hints),
    ("upgrades", 4, Asker::upgrades),
    ("call_logs", 2, Asker::call_logs),
    ("checks", 2, Asker::checks),
    ("orders", 3, Asker::orders),
    ("shares", 3, Asker::shares),
    ("chooses", 10, Asker::chooses),
    ("anything", 8, Asker::anything),
    ("maps", 6, Asker::maps),
    ("protects", 3, Asker::protects),
    ("unmaps", 3, Asker::unmaps),
    ("forks", 2, Asker::forks),
    ("sends", 3, Asker::sends),
    ("receives", 3, Asker::receives),
    ("queues", 8, Asker::queues),
    ("scribbles", 12, Asker::scribbles),
];

/// A request, field by field.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn name(mut self, name: &str, len: usize) -> Self {
        let end = self.0.len() + len;
        self.0.extend(name.bytes().take(len));
        self.0.resize(end, 0);
        self
    }

    fn word(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn long(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
}

impl Asker {
    fn device(&mut self) -> RawFd {
        match self.devices.len() {
            0 => -1,
            count => self.devices[self.rng.usize(0..count)],
        }
    }

    fn one_of<T: Copy + Default>(&mut self, of: &[T]) -> T {
        self.rng.choice(of).copied().unwrap_or_default()
    }

    /// Where something of that length is: mostly in memory that is there, also across the end of it, and anywhere.
    fn pointer(&mut self, len: usize) -> usize {
        let room = 2 * PAGE - len.min(PAGE);
        match self.rng.u32(0..16) {
            0..9 => self.area + self.rng.usize(0..room),
            // Begins where it can be written to, and ends where it cannot.
            9 => self.area + 2 * PAGE - self.rng.usize(0..=len.min(PAGE)),
            // Begins where it can be read, and ends where nothing is.
            10 => self.area + 3 * PAGE - self.rng.usize(0..=len.min(PAGE)),
            11 => self.area + 3 * PAGE,
            12 if !self.maps.is_empty() => self.maps[self.rng.usize(0..self.maps.len())].0,
            13 => self.one_of(&[0, 1, usize::MAX, usize::MAX - 7, 0x7fff_ffff_f000, 0x8000_0000_0000_0000]),
            14 => self.one_of(&[
                0xffff_8880_0000_0000,
                0xffff_ffff_8100_0000,
                0xffff_ffff_ff60_0000,
                0xffff_c900_0000_0000,
            ]),
            _ => self.rng.usize(..),
        }
    }

    /// Text in memory that can be read; its place and length. Or what only looks like that.
    fn text(&mut self, text: &str) -> (u64, u32) {
        if self.rng.u32(0..8) == 0 {
            return (self.pointer(64) as u64, self.one_of(&[0, 1, 64, 4096, 4097, u32::MAX]));
        }
        let at = self.area + self.rng.usize(0..PAGE);
        // SAFETY: it fits into the pages that can be written to.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), at as *mut u8, text.len().min(PAGE)) };
        (at as u64, text.len() as u32)
    }

    fn number(&mut self) -> u32 {
        match self.rng.u32(0..4) {
            0..2 => self.rng.u32(0..9),
            2 => self.one_of(&[0, 1, 255, 4095, 4096, 4097, 1 << 20, 1 << 31, u32::MAX]),
            _ => self.rng.u32(..),
        }
    }

    /// Changes some of it, now and then.
    fn mutate(&mut self, mut bytes: Bytes) -> Bytes {
        while self.rng.u32(0..4) == 0 {
            let at = self.rng.usize(0..bytes.0.len() / 4) * 4;
            let value = self.number();
            bytes.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    /// Asks for it, from somewhere in memory. An ordinary user may only choose, and open queues.
    fn ask(&mut self, direction: u32, number: u32, bytes: Bytes) -> i32 {
        let bytes = self.mutate(bytes);
        let len = bytes.0.len();
        let at = self.pointer(len);
        if at >= self.area && at.saturating_add(len) <= self.area + 2 * PAGE {
            // SAFETY: that can be written to.
            unsafe { ptr::copy_nonoverlapping(bytes.0.as_ptr(), at as *mut u8, len) };
        }
        self.ioctl(request(direction, number, len), at)
    }

    fn ioctl(&mut self, number: libc::c_ulong, argument: usize) -> i32 {
        // That a machine stops is what root has asked for then.
        if number & 0xffff == u64::from(b'E') << 8 | 8 && argument & 3 == 3 {
            return -1;
        }
        let device = self.device();
        // SAFETY: the kernel writes where something can be written to, and nothing in Rust refers to that.
        let done = unsafe { libc::ioctl(device, number, argument) };
        if done == 0 && !self.is_root && ![7, 10, 11].contains(&(number & 0xff)) {
            self.board.add(CONTROL_GAINED, 1);
        }
        done
    }

    /// Opens a queue of hints, mostly of the types that eevdf has, and maps it, mostly as it is.
    fn queues(&mut self) {
        let types = Geometry::of_types::<u64, ()>();
        let hint = if self.rng.u32(0..8) == 0 { self.rng.u64(..) } else { types.up.fingerprint };
        let (len, told) = (self.one_of(&[8, 8, 8, 4, 0, 257]), self.one_of(&[0, 0, 0, 8]));
        let [hints, notices] = [0, 1].map(|_| self.one_of(&[64, 64, 1, 4096, 0, 3, 8192]));
        let (error, slot) = (self.pointer(256), self.rng.u32(0..6));
        let bytes = Bytes::default().long(hint).long(types.down.fingerprint).word(len).word(told).word(hints);
        let queue =
            self.ask(3, 10, bytes.word(notices).word(slot).word(0).long(0).long(error as u64).word(256).word(0));
        if queue < 0 {
            return;
        }
        let (words, access) = (hints as usize * 8, self.one_of(&[3, 3, 3, libc::PROT_READ, 7]));
        let len = if self.rng.u32(0..8) == 0 { PAGE } else { (PAGE + words).next_multiple_of(PAGE) };
        let flags = self.one_of(&[libc::MAP_SHARED, libc::MAP_SHARED, libc::MAP_SHARED, libc::MAP_PRIVATE]);
        // SAFETY: the kernel chooses the place of the new map, so it replaces no other.
        let map = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, queue, 0) };
        let is_ours = map != libc::MAP_FAILED && access == 3;
        self.queues.push((queue, if is_ours { map as usize } else { 0 }, len));
        if self.queues.len() > MOST {
            self.ends_queue();
        }
    }

    fn ends_queue(&mut self) {
        let (queue, map, len) = self.queues.swap_remove(self.rng.usize(0..self.queues.len()));
        // SAFETY: the queue is this process's, and nothing in Rust refers to its memory.
        unsafe {
            let unmaps_first = self.rng.bool();
            if unmaps_first && map != 0 {
                libc::munmap(map as *mut _, len);
            }
            libc::close(queue);
            if !unmaps_first && map != 0 {
                libc::munmap(map as *mut _, len);
            }
        }
    }

    /// Writes anything into the memory of a queue, rings, waits, or ends it.
    fn scribbles(&mut self) {
        if self.queues.is_empty() {
            return;
        }
        let (queue, map, len) = self.queues[self.rng.usize(0..self.queues.len())];
        for _ in 0..self.rng.u32(1..16) {
            // Indices, what else the header has, and records.
            let word = match self.rng.u32(0..4) {
                0..2 => self.one_of(&[16, 16, 32, 48, 64]),
                2 => self.rng.usize(0..80),
                _ => self.rng.usize(0..len / 8),
            };
            let value = if self.rng.bool() { self.rng.u64(0..80) } else { self.rng.u64(..) };
            if map != 0 {
                // SAFETY: it is in the map, which others write to, too.
                unsafe { ptr::write_volatile((map as *mut u64).add(word), value) };
            }
        }
        let mut polled = libc::pollfd { fd: queue, events: self.rng.i16(..), revents: 0 };
        // SAFETY: the request takes no argument, and `polled` is one entry that outlives the call.
        unsafe {
            libc::ioctl(queue, request(0, 11, 0), 0);
            libc::poll(&mut polled, 1, 0);
        }
        if self.rng.u32(0..16) == 0 {
            self.ends_queue();
        }
    }

    fn opens(&mut self) {
        let flags =
            self.one_of(&[libc::O_RDWR, libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR | libc::O_NONBLOCK]);
        let path = if self.rng.u32(0..8) == 0 { c"/proc/ekiden" } else { c"/dev/ekiden" };
        // SAFETY: plain system call with a name that ends.
        let device = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
        self.keep(device);
    }

    fn keep(&mut self, device: RawFd) {
        if device < 0 {
            return;
        }
        self.devices.push(device);
        while self.devices.len() > MOST {
            self.closes();
        }
    }

    fn closes(&mut self) {
        if !self.devices.is_empty() {
            let device = self.devices.swap_remove(self.rng.usize(0..self.devices.len()));
            // SAFETY: it is of the device, and nothing else in this process uses it.
            unsafe { libc::close(device) };
        }
    }

    fn copies(&mut self) {
        // SAFETY: the copy is a new descriptor, and those that are open stay what they are.
        let copy = unsafe { libc::fcntl(self.device(), libc::F_DUPFD_CLOEXEC, 3) };
        self.keep(copy);
    }

    fn reads(&mut self) {
        let len = self.one_of(&[0, 1, 100, PAGE, 2 * PAGE, 1 << 20, usize::MAX >> 1]);
        let (at, device) = (self.pointer(len), self.device());
        let offset = if self.rng.bool() { 0 } else { self.rng.i64(..) };
        // SAFETY: the kernel writes where something can be written to.
        unsafe {
            if self.rng.bool() {
                libc::pread(device, at as *mut _, len, offset)
            } else {
                libc::read(device, at as *mut _, len)
            }
        };
    }

    fn seeks(&mut self) {
        let (to, whence, device) = (self.rng.i64(..), self.rng.i32(-1..6), self.device());
        // SAFETY: it takes numbers, and gets at no memory of ours.
        unsafe { libc::lseek(device, to, whence) };
    }

    fn polls(&mut self) {
        let mut polled = libc::pollfd { fd: self.device(), events: self.rng.i16(..), revents: 0 };
        // SAFETY: `polled` is one entry, and outlives the call.
        unsafe { libc::poll(&mut polled, 1, 0) };
    }

    fn creates(&mut self) {
        let policy = self.one_of(&["fifo", "wfq", "cfs", "eevdf", "faulty", "nosuch", ""]);
        let params = self.one_of(&["", "", "", "period_us=6000", "call=99 fault=3", "=", "nosuch=1"]);
        let (params, params_len) = self.text(params);
        let error = self.pointer(256);
        let arena = self.one_of(&[1 << 20, 1 << 20, 4 << 20, 1 << 16, 0, 1 << 31, u64::MAX]);
        let records = self.one_of(&[0, 1 << 8, 1 << 10, 3, 1 << 40]);
        // Joins; is everyone's; is open; is a group's.
        let flags = self.one_of(&[1, 1, 1, 3, 5, 9, 0, 13, 16]);
        let (cpus, group) = (self.pointer(64), self.number());
        let bytes = Bytes::default().name(policy, 32).long(params).long(cpus as u64).long(error as u64);
        let bytes = bytes.word(params_len).word(1).word(256).word(4096).long(arena).long(records);
        self.ask(3, 1, bytes.word(flags).word(0).word(group).word(0));
    }

    fn hints(&mut self) {
        let values = [self.rng.u64(..), self.rng.u64(0..8)];
        let at = self.area + self.rng.usize(0..PAGE);
        // SAFETY: it is in the pages that can be written to.
        unsafe { ptr::write_unaligned(at as *mut [u64; 2], values) };
        let at = if self.rng.u32(0..4) == 0 { self.pointer(16) } else { at };
        let kind = if self.rng.u32(0..8) == 0 { self.number() } else { self.rng.u32(17..21) };
        let queue = self.number();
        let (len, slot) = (self.one_of(&[0, 8, 8, 16, 7, 4096, 4097]), self.rng.u32(0..10));
        self.ask(3, 2, Bytes::default().word(kind).word(queue).long(at as u64).word(len).word(0).word(slot).word(0));
    }

    fn upgrades(&mut self) {
        let module = self.one_of(&["", "", "ekiden_fifo", "ekiden_wfq", "ekiden_cfs", "ekiden_eevdf", "nosuch"]);
        let policy = self.one_of(&["", "", "", "wfq", "nosuch"]);
        let params = self.one_of(&["", "", "period_us=6000", "nosuch=1"]);
        let (params, params_len) = self.text(params);
        let (error, flags, slot) = (self.pointer(256), self.rng.u32(0..3), self.rng.u32(0..10));
        let arena = self.one_of(&[0, 0, 1 << 20, 1 << 16, 1]);
        let bytes = Bytes::default().name(module, 64).name(policy, 32).long(params).long(error as u64).word(params_len);
        let bytes = bytes.word(256).long(arena).word(flags).word(0).long(0).long(0).word(slot).word(0);
        self.ask(3, 4, bytes);
    }

    fn call_logs(&mut self) {
        let argument = self.number() as usize;
        self.ioctl(request(0, 5, 0), argument);
    }

    fn checks(&mut self) {
        let argument = self.number() as usize;
        self.ioctl(request(0, 8, 0), argument);
    }

    fn orders(&mut self) {
        let mut slots: Vec<u32> = (0..4).collect();
        self.rng.shuffle(&mut slots);
        let (len, slots) = (self.rng.u32(0..10), slots.into_iter().fold(0, |all, slot| all << 8 | slot));
        self.ask(1, 6, Bytes::default().word(slots).word(0).word(len));
    }

    fn shares(&mut self) {
        let at = self.area + self.rng.usize(0..PAGE);
        // SAFETY: it is in the pages that can be written to.
        unsafe { ptr::write_unaligned(at as *mut u64, self.rng.u64(0..16)) };
        let at = if self.rng.u32(0..4) == 0 { self.pointer(8) } else { at };
        let (len, slot, flags) = (self.one_of(&[0, 1, 1, 2, 1024, 1025]), self.rng.u32(0..9), self.rng.u32(0..3));
        let weight = self.one_of(&[0, 0, 1, 100, 10_000, 10_001]);
        self.ask(1, 9, Bytes::default().long(at as u64).word(len).word(slot).word(weight).word(flags));
    }

    fn chooses(&mut self) {
        let params = self.one_of(&["", "", "rank=3", "rank=10", "nosuch=1", "=\0"]);
        let (params, params_len) = self.text(params);
        let (tid, slot, flags) = (self.one_of(&[0, 0, 1, 2, -1, 100_000]), self.rng.u32(0..10), self.rng.u32(0..3));
        let error = self.pointer(256);
        let bytes = Bytes::default().word(tid as u32).word(slot).word(flags).word(params_len).long(params);
        self.ask(1, 7, bytes.long(error as u64).word(256).word(0));
    }

    /// Any number, any size, any content.
    fn anything(&mut self) {
        let (direction, number, size) = (self.rng.u32(0..4), self.rng.u32(0..12), self.rng.usize(0..1 << 14));
        let size = if self.rng.bool() { size } else { self.one_of(&[0, 4, 8, 16, 24, 32, 40, 104, 168]) };
        let at = self.pointer(size);
        let queue = self.ioctl(request(direction, number, size), at);
        if queue > 0 {
            // SAFETY: it is new, and this process's.
            unsafe { libc::close(queue) };
        }
    }

    fn maps(&mut self) {
        // Where the call log of a policy slot begins, or near that, or anywhere.
        let near = i64::from(self.one_of(&[0, 0, 1, 2, 16, 17, 18, 1 << 20])) * PAGE as i64;
        let offset = if self.rng.u32(0..8) == 0 { self.rng.i64(..) & !0xfff } else { self.rng.i64(0..9) << 40 | near };
        let len = self.one_of(&[1, 1, 2, 17, 68, 1 << 10]) * PAGE;
        let access =
            self.one_of(&[libc::PROT_READ, libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE, libc::PROT_NONE, 7]);
        let flags = self.one_of(&[libc::MAP_SHARED, libc::MAP_SHARED, libc::MAP_PRIVATE]);
        let device = self.device();
        // SAFETY: the kernel chooses the place of the new map, so it replaces no other.
        let map = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, device, offset) };
        if map == libc::MAP_FAILED {
            return;
        }
        if !self.is_root {
            self.board.add(CONTROL_GAINED, 1);
        }
        if access & libc::PROT_READ != 0 && flags == libc::MAP_SHARED {
            for page in 0..len / PAGE {
                // SAFETY: the kernel has mapped all of it, or else this process dies, which is a finding.
                unsafe { ptr::read_volatile(map.byte_add(page * PAGE).cast::<u64>()) };
            }
        }
        self.maps.push((map as usize, len));
        if self.maps.len() > MOST {
            self.unmaps();
        }
    }

    fn protects(&mut self) {
        if self.maps.is_empty() {
            return;
        }
        let place = self.rng.usize(0..self.maps.len());
        let (map, len) = self.maps[place];
        let advice = self.one_of(&[libc::MADV_DONTNEED, libc::MADV_DONTFORK, libc::MADV_WILLNEED]);
        let (way, access) = (self.rng.u32(0..4), self.rng.i32(0..8));
        // SAFETY: it is one of the maps, and nothing in Rust refers to it.
        unsafe {
            match way {
                0 => _ = libc::madvise(map as *mut _, len, advice),
                1 if len > PAGE && libc::munmap((map + len - PAGE) as *mut _, PAGE) == 0 => {
                    self.maps[place].1 -= PAGE;
                }
                2 if libc::mremap(map as *mut _, len, len + PAGE, 0) != libc::MAP_FAILED => {
                    self.maps[place].1 += PAGE;
                }
                _ => _ = libc::mprotect(map as *mut _, len, access),
            }
        }
    }

    fn unmaps(&mut self) {
        if !self.maps.is_empty() {
            let (map, len) = self.maps.swap_remove(self.rng.usize(0..self.maps.len()));
            // SAFETY: it was mapped here, and nothing of ours is in it.
            unsafe { libc::munmap(map as *mut _, len) };
        }
    }

    /// A child that has the same descriptors, asks a little, and dies.
    fn forks(&mut self) {
        let steps = self.rng.u32(0..20);
        let _ = fork(|| {
            for _ in 0..steps {
                let step = self.one_of(&[6, 7, 8, 10, 11, 12, 13, 14, 15]);
                STEPS[step].2(self);
            }
            if self.rng.bool() {
                // SAFETY: it takes numbers, and ends the child that this runs in.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        });
        while reap(false).is_some() {}
    }

    fn sends(&mut self) {
        let (to, device) = (self.rng.usize(0..ASKERS), self.device());
        if device < 0 || to == self.number {
            return;
        }
        let Ok(()) = address(to).and_then(|to| self.socket.connect_addr(&to)) else { return };
        // The other process may be dead, or have no room.
        with_descriptor(|message, room| {
            *room = device;
            // SAFETY: `with_descriptor` has made the message whole, and its parts outlive the call.
            unsafe { libc::sendmsg(self.socket.as_raw_fd(), message, libc::MSG_DONTWAIT) };
        });
    }

    fn receives(&mut self) {
        let mut got = -1;
        with_descriptor(|message, room| {
            *room = -1;
            // SAFETY: the message has room for one descriptor.
            if unsafe { libc::recvmsg(self.socket.as_raw_fd(), message, libc::MSG_DONTWAIT) } > 0 {
                got = *room;
            }
        });
        self.keep(got);
    }
}

/// Sends or receives a message of a byte and a descriptor.
fn with_descriptor(carry_out: impl FnOnce(&mut libc::msghdr, &mut RawFd)) {
    const LEN: u32 = size_of::<RawFd>() as u32;
    let (mut byte, mut room) = ([0_u8], [0_u64; 4]);
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: a message of zeros is a good one; the room is large enough for a header and a descriptor, and aligned for both.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(LEN) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(LEN) as usize;
        let descriptor = libc::CMSG_DATA(header).cast::<RawFd>();
        carry_out(&mut message, &mut *descriptor);
    }
}
