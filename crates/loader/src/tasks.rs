//! Whole programs and control groups get a policy, thread by thread.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use ekiden_user::{Device, Error, Terms, Thread};

use crate::error::{Context, LoadError, Result};

/// Threads come while others are looked at: it is looked again until there are no new ones, but not for ever.
const LOOKS: u32 = 20;

/// For whom a policy is chosen.
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

/// Chooses a policy for everybody in `who`: the one in a seat, or, if that is `None`, the one that everybody gets. Returns for how
/// many threads. A program that ends meanwhile is no error; nobody at all is one.
///
/// # Errors
/// If a thread is somebody else's, cannot be scheduled by Ekiden, or none is found; or if the policy refuses what is to be set.
pub fn choose<'a>(who: &Who, seat: Option<u32>, terms: impl Into<Terms<'a>>) -> Result<usize> {
    let device = Device::open()?;
    let terms = terms.into();
    let mut chosen = BTreeSet::new();
    for _ in 0..LOOKS {
        let new: Vec<i32> = who.threads()?.difference(&chosen).copied().collect();
        if new.is_empty() {
            break;
        }
        for tid in new {
            chosen.insert(tid);
            match device.choose(Thread::Id(tid), seat, terms) {
                Err(Error::NotATask(_)) if *who != Who::Thread(tid) => drop(chosen.remove(&tid)),
                other => other?,
            }
        }
    }
    if chosen.is_empty() {
        return Err(LoadError::Nobody);
    }
    Ok(chosen.len())
}
