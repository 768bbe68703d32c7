//! Says what each CPU does at the moment at which a thread of ours has waited for too long: afterwards there is no telling.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{be_real_time, canary::Waits};

/// Looks at them until `stop`, once in a tenth of a second. The first time that one has waited for longer than `most`, the console has a trace of
/// each CPU, and `/host/waits.txt` all tasks that run, want to run or are in the middle of something.
pub(super) fn start(waits: Vec<Waits>, most: Duration, stop: &Arc<AtomicBool>) {
    let stop = stop.clone();
    thread::spawn(move || -> Result<()> {
        be_real_time()?;
        while !stop.load(Relaxed) {
            thread::sleep(Duration::from_millis(100));
            if waits.iter().any(|waits| waits.now() > most) {
                fs::write("/host/waits.txt", tasks()?)?;
                fs::write("/proc/sysrq-trigger", "l")?;
                break;
            }
        }
        Ok(())
    });
}

/// A line for each: its number, name, state, CPU, class and priority in it, group, and where it is in the kernel.
pub(super) fn tasks() -> Result<String> {
    let mut lines = vec!["tid name state cpu class priority group stack".to_owned()];
    let is_process =
        |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(|c: char| c.is_ascii_digit());
    for process in fs::read_dir("/proc")?.flatten().filter(is_process) {
        let Ok(threads) = fs::read_dir(process.path().join("task")) else { continue };
        // They end while one looks at them.
        lines.extend(threads.flatten().filter_map(|thread| task(&thread.path().display().to_string()).ok().flatten()));
    }
    Ok(lines.join("\n") + "\n")
}

fn task(path: &str) -> Result<Option<String>> {
    let stat = fs::read_to_string(format!("{path}/stat"))?;
    let (name, fields) = stat.rsplit_once(')').context("no name")?;
    // The first one is the third of proc_pid_stat(5).
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or("?");
    let name = name.replacen('(', "", 1);
    if !matches!(field(3), "R" | "D") && !name.contains("stress-ng") {
        return Ok(None);
    }
    let group = fs::read_to_string(format!("{path}/cgroup"))?;
    let stack = fs::read_to_string(format!("{path}/stack")).unwrap_or_default();
    let stack: Vec<&str> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let [state, cpu, class, priority] = [3, 39, 41, 40].map(field);
    Ok(Some(format!("{name} {state} {cpu} {class} {priority} {} {}", group.trim(), stack.join(" "))))
}
