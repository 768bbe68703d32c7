//! Counters that processes share: a page of memory that each of them has mapped.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr, slice,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

const PAGE: usize = 4096;

/// The page. Clones are the same one.
#[derive(Clone, Copy)]
pub(crate) struct Board(&'static [AtomicU64]);

impl Board {
    /// A new one, and the file by which another process has it.
    pub(crate) fn new() -> io::Result<(Self, File)> {
        // SAFETY: plain system call with a constant name.
        let fd = unsafe { libc::memfd_create(c"board".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and belongs to no other value.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(PAGE as u64)?;
        Ok((Self::of(&file)?, file))
    }

    /// The board in a file. It stays mapped for as long as the process lives.
    pub(crate) fn of(file: &impl AsRawFd) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new map of a file that has a page.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page is aligned, is never unmapped, and any bytes are good numbers.
        Ok(Self(unsafe { slice::from_raw_parts(page.cast(), PAGE / size_of::<AtomicU64>()) }))
    }

    pub(crate) fn add(self, place: usize, count: u64) {
        self.0[place].fetch_add(count, Relaxed);
    }

    pub(crate) fn set(self, place: usize, value: u64) {
        self.0[place].store(value, Relaxed);
    }

    pub(crate) fn get(self, place: usize) -> u64 {
        self.0[place].load(Relaxed)
    }
}
