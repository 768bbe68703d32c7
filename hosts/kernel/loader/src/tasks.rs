//! Whole programs and control groups get a policy, thread by thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use ekiden_user::{ChooseOptions, Device, Error, Thread};

use crate::error::{Context, LoadError, Result};

/// Threads come while others are looked at: it is looked again until there are no new ones, but not without end.
const LOOKS: u32 = 20;

/// The tasks for which a policy is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// One thread; 0 is the calling one.
    Thread(i32),
    /// All threads of a process.
    Process(i32),
    /// All that are in a control group, by its directory, and in those below it.
    Group(PathBuf),
    /// All processes of this name, as in `/proc/PID/comm`.
    Named(String),
}

impl Who {
    /// The threads that there are now.
    fn threads(&self) -> Result<BTreeSet<i32>> {
        let of_all = |processes: Vec<i32>| processes.into_iter().flat_map(threads_of).collect();
        Ok(match self {
            Self::Thread(tid) => BTreeSet::from([*tid]),
            Self::Process(pid) => of_all(vec![*pid]),
            Self::Named(name) => of_all(processes().filter(|pid| comm(*pid).as_ref() == Some(name)).collect()),
            Self::Group(directory) => {
                let mut threads = BTreeSet::new();
                threads_of_group(directory, &mut threads)
                    .context(format!("cannot read the control group {}", directory.display()))?;
                threads
            }
        })
    }
}

fn numbers(text: &str) -> impl Iterator<Item = i32> {
    text.lines().filter_map(|line| line.trim().parse().ok())
}

fn names_in(directory: &str) -> impl Iterator<Item = i32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn processes() -> impl Iterator<Item = i32> {
    names_in("/proc")
}

fn threads_of(pid: i32) -> impl Iterator<Item = i32> {
    names_in(&format!("/proc/{pid}/task"))
}

fn comm(pid: i32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

fn threads_of_group(directory: &Path, threads: &mut BTreeSet<i32>) -> io::Result<()> {
    // In a threaded group the processes cannot be read, but the threads can.
    let text = fs::read_to_string(directory.join("cgroup.threads"))?;
    threads.extend(numbers(&text));
    for entry in fs::read_dir(directory)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // It may have gone since.
            let _ = threads_of_group(&entry.path(), threads);
        }
    }
    Ok(())
}

/// Chooses a policy for all threads in `who`: the one in a policy slot, or, if that is `None`, the default one. Returns for how
/// many threads. A program that ends meanwhile is no error; no thread at all is one, and so is a program that makes threads faster than
/// they can be looked at.
///
/// # Errors
/// If a thread is another user's, cannot be scheduled by Ekiden, or none is found; or if the policy refuses what is to be set.
pub fn choose<'a>(who: &Who, slot: Option<u32>, options: impl Into<ChooseOptions<'a>>) -> Result<usize> {
    let mut followed = Followed::new(who.clone(), slot)?;
    let chosen = followed.look(options)?;
    if chosen == 0 {
        return Err(LoadError::Nobody);
    }
    Ok(chosen)
}

/// The threads that a policy is chosen for, as they come and go.
pub struct Followed {
    who: Who,
    slot: Option<u32>,
    device: Device,
    /// The threads for which it has been chosen, and when each of them began: a number may be used again.
    chosen: BTreeMap<i32, u64>,
}

impl Followed {
    /// No thread yet.
    ///
    /// # Errors
    /// If there is no device.
    pub fn new(who: Who, slot: Option<u32>) -> Result<Self> {
        Ok(Self { who, slot, device: Device::open()?, chosen: BTreeMap::new() })
    }

    /// Chooses for all that have come since the last look. Returns for how many.
    ///
    /// # Errors
    /// As [`choose`], but that there may be no thread.
    pub fn look<'a>(&mut self, options: impl Into<ChooseOptions<'a>>) -> Result<usize> {
        let options = options.into();
        let mut count = 0;
        let mut is_whole = false;
        for _ in 0..LOOKS {
            let now: BTreeMap<i32, u64> =
                self.who.threads()?.into_iter().filter_map(|tid| Some((tid, began(tid)?))).collect();
            self.chosen.retain(|tid, began| now.get(tid) == Some(began));
            let new: Vec<(i32, u64)> =
                now.into_iter().filter(|(tid, began)| self.chosen.get(tid) != Some(began)).collect();
            is_whole = new.is_empty();
            if is_whole {
                break;
            }
            for (tid, began) in new {
                match self.device.choose(Thread::Id(tid), self.slot, options) {
                    Err(Error::NotATask(_)) if self.who != Who::Thread(tid) => {}
                    other => {
                        other?;
                        count += 1;
                    }
                }
                self.chosen.insert(tid, began);
            }
        }
        if !is_whole {
            return Err(LoadError::Restless { count });
        }
        Ok(count)
    }
}

/// When a thread began, by the kernel's clock; nothing if it is gone.
fn began(tid: i32) -> Option<u64> {
    let stat = if tid == 0 { "/proc/thread-self/stat".to_owned() } else { format!("/proc/{tid}/stat") };
    let text = fs::read_to_string(stat).ok()?;
    // Behind the name, which may have anything in it, the start is the twentieth.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_a_beginning_as_long_as_it_lives() {
        let this = nix::unistd::gettid().as_raw();
        let mine = began(this).expect("this thread lives");
        assert_eq!(began(0), Some(mine));
        let other = std::thread::spawn(|| nix::unistd::gettid().as_raw()).join().unwrap();
        assert_ne!(began(other), Some(mine));
        assert_eq!(began(i32::MAX), None);
    }

    #[test]
    fn those_of_a_name_and_of_a_process_are_all_their_threads() {
        let this = std::process::id() as i32;
        let (sender, told) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = stopped.recv();
        });
        let other = told.recv().unwrap();
        let of_process = Who::Process(this).threads().unwrap();
        assert!(of_process.contains(&this) && of_process.contains(&other), "{of_process:?}");
        let name = comm(this).unwrap();
        let of_name = Who::Named(name).threads().unwrap();
        assert!(of_name.is_superset(&BTreeSet::from([this, other])), "{of_name:?}");
        assert!(Who::Named("no program has this name".into()).threads().unwrap().is_empty());
        drop(stop);
        thread.join().unwrap();
        assert!(!Who::Process(this).threads().unwrap().contains(&other));
    }

    #[test]
    fn those_of_a_group_are_all_that_are_in_it_and_below_it() {
        let group = tempfile::tempdir().unwrap();
        fs::write(group.path().join("cgroup.threads"), "1\n2\n").unwrap();
        fs::create_dir_all(group.path().join("below/deeper")).unwrap();
        fs::write(group.path().join("below/cgroup.threads"), "").unwrap();
        fs::write(group.path().join("below/deeper/cgroup.threads"), "3\n").unwrap();
        let of = |path: &Path| Who::Group(path.to_owned()).threads();
        assert_eq!(of(group.path()).unwrap(), BTreeSet::from([1, 2, 3]));
        assert!(of(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere"));
    }
}
