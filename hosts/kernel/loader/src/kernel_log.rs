//! What the kernel's log says of a scheduler that the kernel let go of.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
};

/// How the kernel names a scheduler of ours; the rest is the policy's name.
const OURS: &str = "sched_ext: BPF scheduler \"ekiden_";

/// Why the kernel let go of our scheduler, if that is the last that its log says of it. Where there are several policies, only the one that came first
/// has the program, to which the kernel gives its reason. `None` where the log cannot be read.
pub(crate) fn exit_reason() -> Option<String> {
    let mut log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
    let mut lines = Vec::new();
    // A line at a time, as no more is given.
    let mut line = [0; 8192];
    loop {
        match log.read(&mut line) {
            Ok(0) => break,
            Ok(length) => lines.push(String::from_utf8_lossy(&line[..length]).into_owned()),
            // Lines were lost before they could be read.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    reason_in(lines.iter().map(String::as_str))
}

/// What comes before the first semicolon says when a line was written; what comes after the first line, by what.
fn text_of(line: &str) -> Option<&str> {
    line.split_once(';')?.1.lines().next()
}

fn reason_in<'a>(lines: impl Iterator<Item = &'a str>) -> Option<String> {
    let texts: Vec<&str> = lines.filter_map(text_of).collect();
    let last = texts.iter().rposition(|text| text.contains(OURS))?;
    let (name, event) = texts[last].split_once(OURS)?.1.split_once("\" ")?;
    let reason = event.strip_prefix("disabled (")?.strip_suffix(')')?;
    // More of it follows where it was an error.
    let more = format!("sched_ext: ekiden_{name}: ");
    let more = texts[last..].iter().find_map(|text| text.strip_prefix(more.as_str()));
    Some(more.map_or_else(|| reason.to_owned(), |more| format!("{reason} {more}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENABLED: &str = "6,901,5100,-;sched_ext: BPF scheduler \"ekiden_wfq\" enabled\n SUBSYSTEM=x\n";
    const DISABLED: &str = "3,950,9300,-;sched_ext: BPF scheduler \"ekiden_wfq\" disabled (runnable task stall)\n";
    const MORE: &str = "3,951,9301,-;sched_ext: ekiden_wfq: sh[17] failed to run for 30.012s\n";
    const OTHERS: &str = "3,949,9200,-;sched_ext: BPF scheduler \"simple\" disabled (unregistered from user space)\n";

    #[test]
    fn the_last_that_the_log_says_of_a_scheduler_of_ours_is_its_reason() {
        let reason = |lines: &[&str]| reason_in(lines.iter().copied());
        let whole = "runnable task stall sh[17] failed to run for 30.012s";
        assert_eq!(reason(&[ENABLED, OTHERS, DISABLED, MORE, OTHERS]).as_deref(), Some(whole));
        assert_eq!(reason(&[ENABLED, DISABLED]).as_deref(), Some("runnable task stall"));
        // It runs again, or never ran.
        assert_eq!(reason(&[ENABLED, DISABLED, MORE, ENABLED]), None);
        assert_eq!(reason(&[OTHERS, "no line of a log"]), None);
    }
}
