//! Waiting until the kernel has something new to say of policies, without asking again and again.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use crate::{
    control::DEVICE,
    error::{LoadError, Result},
};

/// Waits for what happens to policies.
#[derive(Debug)]
pub struct Changes(Source);

#[derive(Debug)]
enum Source {
    /// What `ekiden.ko` says when it is read. Until it is read again from its beginning, a change stays reported.
    Status(File),
    /// A file that can be read once there is nothing more to come.
    End(OwnedFd),
    Over,
}

impl Changes {
    /// Policies in the kernel come, go, are taken out or upgraded, or the kernel begins or ends to call them, from now on.
    ///
    /// # Errors
    /// If `ekiden.ko` is not loaded.
    pub fn of_module() -> Result<Self> {
        let failed = |source| LoadError::Io { what: format!("cannot open {DEVICE}"), source };
        Ok(Self(Source::Status(File::open(DEVICE).map_err(failed)?)))
    }

    /// There is one change, and `file` can be read when it has come.
    pub fn of_end(file: OwnedFd) -> Self {
        Self(Source::End(file))
    }

    /// Waits for the next change. False, and at once, if no more can come, or if `over` can be read or has no other end any more.
    ///
    /// # Errors
    /// If the kernel cannot wait for these files.
    pub fn wait(&mut self, over: BorrowedFd<'_>) -> io::Result<bool> {
        let has_changed = match &mut self.0 {
            Source::Status(status) => {
                let has_changed = waited(status.as_fd(), PollFlags::POLLPRI, over)?;
                if has_changed {
                    io::Seek::rewind(status)?;
                    io::copy(status, &mut io::sink())?;
                }
                return Ok(has_changed);
            }
            Source::End(file) => waited(file.as_fd(), PollFlags::POLLIN, over)?,
            Source::Over => false,
        };
        self.0 = Source::Over;
        Ok(has_changed)
    }
}

/// Waits until one of two files has what is wanted of it. Whether it was the first one, and not the other.
fn waited(file: BorrowedFd<'_>, wanted: PollFlags, over: BorrowedFd<'_>) -> io::Result<bool> {
    let mut files = [PollFd::new(file, wanted), PollFd::new(over, PollFlags::POLLIN)];
    loop {
        match poll(&mut files, PollTimeout::NONE) {
            Ok(_) => return Ok(files[1].revents().is_some_and(|found| found.is_empty())),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::unix::net::UnixStream,
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn an_end_is_told_once_and_a_wait_can_be_ended() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        let (stop, over) = UnixStream::pair().unwrap();
        let mut changes = Changes::of_end(reader.into());
        let began = Instant::now();
        let waiting = thread::spawn(move || {
            let first = changes.wait(over.as_fd()).unwrap();
            (first, changes.wait(over.as_fd()).unwrap())
        });
        thread::sleep(Duration::from_millis(20));
        writer.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap(), (true, false));
        assert!(began.elapsed() >= Duration::from_millis(20));

        let (_writer, reader) = UnixStream::pair().unwrap();
        let (mine, over) = UnixStream::pair().unwrap();
        let waiting = thread::spawn(move || Changes::of_end(reader.into()).wait(over.as_fd()).unwrap());
        drop(mine);
        assert!(!waiting.join().unwrap());
        drop(stop);
    }
}
