//! Processes without a program of their own.

use std::{io, ptr};

/// A new process, which does this and ends. Its PID, unless there can be no more.
pub(crate) fn fork(work: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: processes that call this have one thread.
    match unsafe { libc::fork() } {
        0 => {
            work();
            // SAFETY: it ends here, without what its parent would do at its end.
            unsafe { libc::_exit(0) }
        }
        pid if pid > 0 => Ok(pid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One that has ended, of this one's children; none if none has. If `waits`, waits for one.
pub(crate) fn reap(waits: bool) -> Option<i32> {
    // SAFETY: null says that the status is not asked for, so nothing is written.
    let pid = unsafe { libc::waitpid(-1, ptr::null_mut(), if waits { 0 } else { libc::WNOHANG }) };
    (pid > 0).then_some(pid)
}
