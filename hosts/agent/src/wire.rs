//! What the agent and `hosts/kernel/bpf/agent.bpf.c` have mapped together.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use ekiden::{Call, Calls};
use ekiden_loader::{LoadError, Result};
use libbpf_rs::{MapCore, libbpf_sys};
use memmap2::{MmapOptions, MmapRaw};

/// Room for this many control groups, with that of the root; `GROUPS_MOST` there.
pub(crate) const GROUPS_MOST: u32 = 8_192;

/// CPUs of which a slot of a task has room, 64 in each word.
pub(crate) const WORDS: usize = 4;

/// `enum kind` there.
pub(crate) mod kind {
    pub(crate) const NEW: u32 = 1;
    pub(crate) const RUNNABLE: u32 = 2;
    pub(crate) const BLOCKED: u32 = 3;
    pub(crate) const YIELDED: u32 = 4;
    pub(crate) const DEAD: u32 = 5;
    pub(crate) const DEPARTED: u32 = 6;
    pub(crate) const LOOKS: u32 = 7;
    pub(crate) const REFUSED: u32 = 8;
    pub(crate) const TICKED: u32 = 9;
    pub(crate) const RENICED: u32 = 10;
    pub(crate) const MOVED: u32 = 11;
    pub(crate) const ONLINE: u32 = 12;
    pub(crate) const OFFLINE: u32 = 13;
    pub(crate) const GROUP: u32 = 14;
    pub(crate) const JOINED: u32 = 15;
}

/// Flags of [`kind::RUNNABLE`].
pub(crate) mod flag {
    pub(crate) const WOKEN: u32 = 1;
    pub(crate) const SELECTED: u32 = 2;
    pub(crate) const LEAVES_CPU: u32 = 4;
    pub(crate) const PLACED: u32 = 8;
    pub(crate) const AT_USER: u32 = 16;
}

/// `enum state` there.
pub(crate) mod state {
    pub(crate) const FREE: u8 = 0;
    pub(crate) const WAITS: u8 = 2;
    pub(crate) const DECIDED: u8 = 3;
    pub(crate) const RUNS: u8 = 4;
}

/// `enum presence` there.
mod presence {
    pub(super) const LEFT: u32 = 1;
    pub(super) const CAME: u32 = 2;
    pub(super) const LEAVES: u32 = 3;
}

/// `enum result` there.
pub(crate) mod result {
    pub(crate) const DONE: u32 = 1;
    pub(crate) const DONE_HERE: u32 = 2;
    pub(crate) const STALE: u32 = 3;
}

/// `struct message` there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Message {
    number: u64,
    pub(crate) kind: u32,
    pub(crate) cpu: u32,
    pub(crate) slot: u32,
    pub(crate) flags: u32,
    pub(crate) seq: u64,
    pub(crate) runtime_ns: u64,
    pub(crate) arg: u64,
    pub(crate) pid: u32,
    pub(crate) nice: i32,
    _spare: u64,
}

/// `struct task` there.
#[repr(C)]
pub(crate) struct TaskSlot {
    word: AtomicU64,
    began: AtomicU64,
    runtime_ns: AtomicU64,
    pid: AtomicU32,
    cpu: AtomicU32,
    nice: AtomicU32,
    is_idle_policy: AtomicU32,
    _select: [u32; 2],
    allowed: [AtomicU64; WORDS],
    group: AtomicU32,
    _pad: u32,
    _utime: u64,
    _spare: [u64; 4],
}

/// What stands in a slot at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) seq: u64,
    pub(crate) state: u8,
    pub(crate) began: u64,
    pub(crate) runtime_ns: u64,
    pub(crate) pid: u32,
    pub(crate) cpu: u32,
    pub(crate) nice: i32,
    pub(crate) is_idle_policy: bool,
    pub(crate) group: u32,
}

/// `struct group` there.
#[repr(C)]
struct GroupSlot {
    id: AtomicU64,
    quota_us: AtomicU64,
    period_us: AtomicU64,
    burst_us: AtomicU64,
    parent: AtomicU32,
    level: AtomicU32,
    weight: AtomicU32,
    is_idle: AtomicU32,
    is_delegated: AtomicU32,
    limited: AtomicU32,
    _spare: u64,
}

/// What stands there about a control group. A message follows what is written while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenGroup {
    /// The kernel's name for it, 0 for none.
    pub(crate) id: u64,
    pub(crate) quota_us: u64,
    /// 0 for no limit.
    pub(crate) period_us: u64,
    pub(crate) burst_us: u64,
    /// The slot of the nearest group above it that has one; 0 is the root.
    pub(crate) parent: u32,
    pub(crate) level: u32,
    pub(crate) weight: u32,
    pub(crate) is_idle: bool,
    pub(crate) is_delegated: bool,
}

/// `struct cpu` there.
#[repr(C)]
struct CpuSlot {
    next: AtomicU64,
    _of_next: [u64; 2],
    looks: AtomicU32,
    _own: [u32; 2],
    presence: AtomicU32,
    _at_user: u32,
    _spare: [u32; 5],
}

/// `struct shot` there: a decision, and its result.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shot {
    pub(crate) cpu: u32,
    /// The slot of the task that is to run; 0 has the CPU look for work.
    pub(crate) slot: u32,
    pub(crate) seq: u64,
    pub(crate) slice_ns: u64,
    pub(crate) result: u32,
    pub(crate) _spare: u32,
}

/// `struct control` there.
#[repr(C)]
pub(crate) struct Control {
    pub(crate) tail: AtomicU64,
    pub(crate) beat: AtomicU64,
    pub(crate) tid: AtomicU32,
    pub(crate) tgid: AtomicU32,
    count: AtomicU32,
    pub(crate) eager: AtomicU32,
    alarm_ns: AtomicU64,
    pub(crate) slice_ns: AtomicU64,
    pub(crate) limits: AtomicU32,
    pub(crate) held: AtomicU32,
    wants_ticks: AtomicU32,
    may_place: AtomicU32,
    head: AtomicU64,
    pub(crate) lost: AtomicU64,
    _waiting: u64,
    _throttled: [u32; 3],
    pub(crate) due: AtomicU32,
    pub(crate) ended: AtomicU32,
    slots: AtomicU32,
    groups: AtomicU32,
    _pad1: u32,
    _pad2: u64,
    beyond: AtomicU64,
    _watch: [u64; 8],
}

const _: () = {
    assert!(size_of::<Message>() == 64);
    assert!(size_of::<TaskSlot>() == 128);
    assert!(size_of::<GroupSlot>() == 64);
    assert!(size_of::<CpuSlot>() == 72 - 8);
    assert!(size_of::<Shot>() == 32);
    assert!(size_of::<Control>() == 200);
};

/// The programs that the agent runs by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Programs {
    pub(crate) shoot: RawFd,
    pub(crate) alarm: RawFd,
    pub(crate) give_up: RawFd,
}

/// A map of BPF that is mapped, as an array.
struct Mapped {
    map: MmapRaw,
    len: u32,
}

impl Mapped {
    fn new(map: &impl MapCore, len: u32) -> Result<Self> {
        let bytes = len as usize * map.value_size() as usize;
        let map = MmapOptions::new().len(bytes).map_raw(&map.as_fd()).map_err(|source| LoadError::Io {
            what: "cannot map the memory that is shared with the kernel".into(),
            source,
        })?;
        Ok(Self { map, len })
    }

    fn at<T>(&self, index: u32) -> *mut T {
        assert!(index < self.len, "{index} of {}", self.len);
        // SAFETY: within the map, which has that many values of the size of this type, as is asserted above.
        unsafe { self.map.as_mut_ptr().cast::<T>().add(index as usize) }
    }
}

/// All of it.
pub(crate) struct Shared {
    control: *const Control,
    fault_text: *mut [u8; 256],
    ring: Mapped,
    tasks: Mapped,
    groups: Mapped,
    cpus: Mapped,
    shots: Mapped,
    programs: Programs,
    /// Whether tasks may be placed without the agent.
    may_place: bool,
}

// SAFETY: what is behind the pointers is mapped for as long as the program is loaded, which is as long as this
// process lives; it is atomic, or written by one thread.
unsafe impl Send for Shared {}
// SAFETY: what several threads look at is atomic; see `Send`.
unsafe impl Sync for Shared {}

/// The maps, and how many values each has.
pub(crate) struct Maps<'a, M> {
    pub(crate) ring: (&'a M, u32),
    pub(crate) tasks: (&'a M, u32),
    pub(crate) groups: (&'a M, u32),
    pub(crate) cpus: (&'a M, u32),
    pub(crate) shots: (&'a M, u32),
}

impl Shared {
    /// # Safety
    /// `control` and `fault_text` are those of the loaded program, which stays mapped.
    pub(crate) unsafe fn new<M: MapCore>(
        control: *const Control,
        fault_text: *mut [u8; 256],
        maps: &Maps<'_, M>,
        programs: Programs,
        may_place: bool,
    ) -> Result<Self> {
        let mapped = |(map, len): (&M, u32)| Mapped::new(map, len);
        Ok(Self {
            control,
            fault_text,
            ring: mapped(maps.ring)?,
            tasks: mapped(maps.tasks)?,
            groups: mapped(maps.groups)?,
            cpus: mapped(maps.cpus)?,
            shots: mapped(maps.shots)?,
            programs,
            may_place,
        })
    }

    pub(crate) fn control(&self) -> &Control {
        // SAFETY: it points into the map of the loaded program, which stays mapped, and all fields that are used are atomic.
        unsafe { &*self.control }
    }

    /// Message `number`, if it is there.
    #[inline]
    pub(crate) fn message(&self, number: u64) -> Option<Message> {
        let place = self.ring.at::<Message>(number as u32 & (self.ring.len - 1));
        // SAFETY: a field of a place in the map, aligned.
        let is_there = unsafe { &*(&raw const (*place).number).cast::<AtomicU64>() }.load(Acquire) == number + 1;
        // SAFETY: whole, and not written again before `tail` says that it was taken.
        is_there.then(|| unsafe { ptr::read_volatile(place) })
    }

    /// How many messages were begun.
    pub(crate) fn head(&self) -> u64 {
        self.control().head.load(Acquire)
    }

    /// The highest slot that was ever used.
    pub(crate) fn slots(&self) -> u32 {
        self.control().slots.load(Relaxed).min(self.tasks.len - 1)
    }

    fn slot(&self, slot: u32) -> &TaskSlot {
        // SAFETY: `at` gives a place within the map, which lives as long as `self`; all fields that are used are atomic.
        unsafe { &*self.tasks.at::<TaskSlot>(slot) }
    }

    /// What a slot says, all of one moment.
    pub(crate) fn look(&self, slot: u32) -> Seen {
        let task = self.slot(slot);
        loop {
            let word = task.word.load(Acquire);
            let seen = Seen {
                seq: word >> 8,
                state: word as u8,
                began: task.began.load(Acquire),
                runtime_ns: task.runtime_ns.load(Acquire),
                pid: task.pid.load(Acquire),
                cpu: task.cpu.load(Acquire),
                nice: task.nice.load(Acquire) as i32,
                is_idle_policy: task.is_idle_policy.load(Acquire) != 0,
                group: task.group.load(Acquire),
            };
            if task.word.load(Acquire) == word {
                return seen;
            }
        }
    }

    /// The CPUs that the task in a slot may use.
    pub(crate) fn allowed(&self, slot: u32) -> [u64; WORDS] {
        std::array::from_fn(|word| self.slot(slot).allowed[word].load(Relaxed))
    }

    /// The highest slot of a control group that was ever used.
    pub(crate) fn groups(&self) -> u32 {
        self.control().groups.load(Relaxed).min(GROUPS_MOST - 1)
    }

    fn group_slot(&self, slot: u32) -> &GroupSlot {
        // SAFETY: within the map, or `at` panics; all fields are atomic.
        unsafe { &*self.groups.at::<GroupSlot>(slot) }
    }

    /// What stands in the slot of a control group.
    pub(crate) fn group(&self, slot: u32) -> SeenGroup {
        let group = self.group_slot(slot);
        // First, so that what follows is of this group, or of a later one, of which a message follows.
        let id = group.id.load(Acquire);
        SeenGroup {
            id,
            quota_us: group.quota_us.load(Acquire),
            period_us: group.period_us.load(Acquire),
            burst_us: group.burst_us.load(Acquire),
            parent: group.parent.load(Acquire),
            level: group.level.load(Acquire),
            weight: group.weight.load(Acquire),
            is_idle: group.is_idle.load(Acquire) != 0,
            is_delegated: group.is_delegated.load(Acquire) != 0,
        }
    }

    /// Says whether the time of the tasks in a group is limited.
    pub(crate) fn set_limited(&self, slot: u32, is_limited: bool) {
        self.group_slot(slot).limited.store(is_limited.into(), Release);
    }

    /// Whether a CPU has told that it looks for work.
    pub(crate) fn looks(&self, cpu: u32) -> bool {
        // SAFETY: `at` gives a place within the map, which lives as long as `self`; the field is atomic.
        unsafe { &*self.cpus.at::<CpuSlot>(cpu) }.looks.load(Acquire) != 0
    }

    /// The slot of the task that was decided for a CPU and that it has not taken yet, 0 for none.
    pub(crate) fn next(&self, cpu: u32) -> u64 {
        // SAFETY: `at` gives a place within the map, which lives as long as `self`; the field is atomic.
        unsafe { &*self.cpus.at::<CpuSlot>(cpu) }.next.load(Acquire)
    }

    /// Whether a CPU is online, if that has changed since the agent began.
    pub(crate) fn came_or_left(&self, cpu: u32) -> Option<bool> {
        // SAFETY: within the map, as `at` says; the field is atomic.
        match unsafe { &*self.cpus.at::<CpuSlot>(cpu) }.presence.load(Acquire) {
            presence::LEFT | presence::LEAVES => Some(false),
            presence::CAME => Some(true),
            _ => None,
        }
    }

    /// How many decisions there is room for in a batch.
    pub(crate) fn batch(&self) -> usize {
        self.shots.len as usize
    }

    /// Puts decisions where the kernel takes them when this thread gives way next.
    pub(crate) fn lay(&self, batch: &[Shot]) {
        for (index, shot) in (0..).zip(batch) {
            // SAFETY: only this thread writes there while the program does not run.
            unsafe { self.shots.at::<Shot>(index).write(*shot) };
        }
        self.control().count.store(batch.len() as u32, Release);
    }

    /// Whether what was laid has gone out.
    pub(crate) fn is_out(&self) -> bool {
        self.control().count.load(Acquire) == 0
    }

    /// Has what was laid carried out now, if it has not been, by one system call. Each has its result then.
    pub(crate) fn collect(&self, batch: &mut [Shot]) {
        if !self.is_out() {
            run(self.programs.shoot);
        }
        for (index, shot) in (0..).zip(batch) {
            // SAFETY: within the map, as `at` says; the program that writes there has ended.
            shot.result = unsafe { ptr::read_volatile(self.shots.at::<Shot>(index)) }.result;
        }
    }

    /// Has the agent called after this many nanoseconds.
    pub(crate) fn set_alarm(&self, after_ns: u64) {
        self.control().alarm_ns.store(after_ns, Release);
        run(self.programs.alarm);
    }

    /// Tasks that there is no room for.
    pub(crate) fn beyond(&self) -> u64 {
        self.control().beyond.load(Relaxed)
    }

    /// Says what the policy that decides from here on wants.
    pub(crate) fn set_calls(&self, calls: Calls) {
        let control = self.control();
        control.wants_ticks.store(calls.has(Call::TaskTick).into(), Release);
        control.may_place.store((self.may_place && !calls.has(Call::SelectTaskRq)).into(), Release);
    }

    /// Says that the agent gets on. Only its thread does.
    pub(crate) fn beats(&self) {
        let beat = &self.control().beat;
        beat.store(beat.load(Relaxed) + 1, Release);
    }

    /// Has the kernel take all tasks back, for this reason.
    pub(crate) fn give_up(&self, why: &str) {
        let mut text = [0; 256];
        let mut end = why.len().min(text.len() - 1);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        text[..end].copy_from_slice(&why.as_bytes()[..end]);
        // SAFETY: it points into the map of the loaded program, which stays mapped, and only the agent's thread writes there, once.
        unsafe { ptr::write_volatile(self.fault_text, text) };
        run(self.programs.give_up);
    }
}

/// Runs a program of type syscall.
fn run(program: RawFd) {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ..libbpf_sys::bpf_test_run_opts::default()
    };
    // SAFETY: the options are on the stack and name no memory. That it fails would be seen in the results, which stay
    // as they were.
    unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &raw mut options) };
}

/// The descriptor of a program.
pub(crate) fn fd(program: &impl AsFd) -> RawFd {
    program.as_fd().as_raw_fd()
}
