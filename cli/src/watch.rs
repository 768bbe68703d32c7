//! Waits on a thread of its own for what the kernel does with a policy that this process has started.

use std::{
    io::{self, Read},
    os::{fd::AsFd, unix::net::UnixStream},
    thread::{self, JoinHandle},
    time::Duration,
};

use ekiden_loader::Changes;

use crate::child::LookAgain;

/// How often it is looked at where the kernel cannot be waited for.
const EVERY: Duration = Duration::from_secs(1);

/// Waits until it is dropped.
pub(crate) struct Watch {
    over: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Has the policy looked at after each change.
    pub(crate) fn begin(mut changes: Changes, look: LookAgain) -> io::Result<Self> {
        let (over, mut is_over) = UnixStream::pair()?;
        is_over.set_read_timeout(Some(EVERY))?;
        let watch = move || {
            loop {
                match changes.wait(is_over.as_fd()) {
                    Ok(true) => look.say(),
                    Ok(false) => return,
                    Err(_) if matches!(is_over.read(&mut [0]), Ok(0)) => return,
                    Err(_) => look.say(),
                }
            }
        };
        let thread = thread::Builder::new().name("ekiden-watch".into()).spawn(watch)?;
        Ok(Self { over: Some(over), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
