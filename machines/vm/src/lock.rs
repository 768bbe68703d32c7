//! Locks between processes that say which one holds them. They go away with their holder, however that ends.

use crate::{Result, error::Context};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    fs::{self, File},
    io::Write,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Longer command lines are cut when they are shown.
const SHOWN_CHARS: usize = 100;

/// The process that holds a lock, as its file tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// When it took the lock, in seconds since 1970.
    pub since_s: u64,
}

impl Holder {
    fn this() -> Self {
        let mut words = std::env::args_os();
        let program = words.next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let words: Vec<String> =
            [name].into_iter().chain(words.map(|word| word.to_string_lossy().into_owned())).collect();
        let mut command = words.join(" ");
        if let Some((end, _)) = command.char_indices().nth(SHOWN_CHARS) {
            command.truncate(end);
            command.push('…');
        }
        Self { pid: std::process::id(), command, since_s: seconds_since_1970() }
    }

    fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// The process that holds a lock now, told from its file and without touching the lock: to look disturbs no holder.
    pub(crate) fn now(path: &Path) -> Option<Self> {
        let holder = Self::read(path)?;
        // A holder that was killed has left its name.
        Path::new("/proc").join(holder.pid.to_string()).exists().then_some(holder)
    }

    /// How long it has held the lock.
    pub fn held_for(&self) -> Duration {
        Duration::from_secs(seconds_since_1970().saturating_sub(self.since_s))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (PID {}, since {} s)", self.command, self.pid, self.held_for().as_secs())
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A lock that this process holds.
#[derive(Debug)]
pub struct Lock {
    file: Flock<File>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Its name is no longer true; if it stays, it is only looked at while another holds the lock or its process
        // lives.
        let _ = self.file.set_len(0);
    }
}

/// Why a lock was not to be had at once: its holder, if its file names it.
pub(crate) type Held = Option<Holder>;

impl Lock {
    /// Takes the lock unless another process has it.
    pub(crate) fn try_take(path: &Path) -> Result<std::result::Result<Self, Held>> {
        match Flock::lock(open(path)?, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Self::note(file, path).map(Ok),
            Err((_, Errno::EWOULDBLOCK)) => Ok(Err(Holder::read(path))),
            Err((_, errno)) => Err(errno).context("lock", path),
        }
    }

    /// Waits for the lock. If another process has it, `progress` is told which.
    pub fn wait(path: &Path, progress: &mut dyn FnMut(&str)) -> Result<Self> {
        match Self::try_take(path)? {
            Ok(lock) => return Ok(lock),
            Err(Some(holder)) => progress(&format!("waiting for {holder}, which holds {}", path.display())),
            Err(None) => progress(&format!("waiting for the process that holds {}", path.display())),
        }
        let file = Flock::lock(open(path)?, FlockArg::LockExclusive).map_err(|(_, errno)| errno);
        Self::note(file.context("lock", path)?, path)
    }

    /// Writes down the holder, for processes that wait.
    fn note(mut file: Flock<File>, path: &Path) -> Result<Self> {
        let holder = serde_json::to_vec(&Holder::this()).unwrap_or_default();
        file.set_len(0).and_then(|()| file.write_all(&holder)).context("write", path)?;
        Ok(Self { file })
    }
}

/// Not truncated before it is locked: its content is another's until then.
fn open(path: &Path) -> Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path).context("create", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_says_by_whom() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = Lock::try_take(&path).unwrap().unwrap();
        let holder = Lock::try_take(&path).unwrap().unwrap_err().unwrap();
        assert_eq!(holder.pid, std::process::id());
        assert!(holder.to_string().contains(&format!("(PID {}, since ", holder.pid)), "{holder}");
        assert_eq!(Holder::now(&path), Some(holder));
        drop(lock);
        assert_eq!(Holder::now(&path), None);
        Lock::try_take(&path).unwrap().unwrap();
    }

    #[test]
    fn a_process_that_waits_is_told_whom_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = Lock::try_take(&path).unwrap().unwrap();
        let mut held = Some(lock);
        let mut told = Vec::new();
        Lock::wait(&path, &mut |line| {
            told.push(line.to_owned());
            held = None;
        })
        .unwrap();
        assert!(told.len() == 1 && told[0].contains(&format!("PID {}", std::process::id())), "{told:?}");
    }
}
