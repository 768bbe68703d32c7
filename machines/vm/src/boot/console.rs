//! What a guest's kernel said on its console, and which of it is bad news.

use crate::process::last_lines;
use std::{
    cell::Cell,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Parts of console lines that a healthy kernel never prints.
const BAD_NEWS: &[&str] = &[
    "BUG:",
    // What slab debugging finds: the name of the cache follows.
    "] BUG ",
    "Oops:",
    "Oops ",
    "WARNING:",
    "Kernel panic",
    "general protection fault",
    "rcu_sched self-detected stall",
    "rcu_preempt self-detected stall",
    "detected stalls on CPUs",
    "detected expedited stalls",
    "kthread starved for",
    "wakeup didn't happen for",
    "processes failed after",
    "soft lockup",
    "hard LOCKUP",
    "blocked for more than",
    "possible circular locking dependency",
    "Unable to handle kernel",
    "unable to handle page fault",
    "kernel BUG at",
    "scheduling while atomic",
    "sleeping function called from invalid context",
    "stack-protector",
    "UBSAN:",
    "KASAN:",
    "list_add corruption",
    "list_del corruption",
    "refcount_t:",
    "segfault at",
    "Out of memory:",
];

/// Lines that are read from the first bad news on: a stall's report names every CPU, and the registers and the stack of one.
const FINDING_LINES: usize = 80;

/// How a report names the end of a machine that was lost in this way.
const EMULATOR_FAULT: &str = "by a fault of QEMU's own: its kernel met a breakpoint that it had removed, which happens where emulated CPUs run in \
                              threads (see docs/virtual-machines.md). Run the same command again";

/// The console log of one guest.
#[derive(Clone, Debug)]
pub struct Console {
    pub(crate) log: PathBuf,
}

impl Console {
    /// Everything so far.
    pub fn text(&self) -> String {
        // Before QEMU has made the file there is nothing to read.
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last `count` lines; before them the first bad news with what follows it, if they do not show it.
    pub fn tail(&self, count: usize) -> String {
        tail(&self.text(), count)
    }

    /// Lines that tell of an oops, a warning, a stall or a lockup. A log that cannot be read is one, too: it may have any of them.
    pub fn findings(&self) -> Vec<String> {
        match fs::read(&self.log) {
            Ok(bytes) => console_findings(&String::from_utf8_lossy(&bytes)),
            Err(error) => vec![format!("the console log {} cannot be read: {error}", self.log.display())],
        }
    }

    /// Whether the guest fell over a fault of its emulator.
    ///
    /// Linux changes its code while other CPUs run it: `int3` is put in place of the first byte, then the rest is written, then
    /// the first byte. QEMU, to 11.1 at least, throws away what it has translated of that place *before* each write. Another CPU in a
    /// thread of its own that translates the place between the two keeps the old `int3`, for good, and the kernel, which has none there,
    /// can only say "Oops: int3". `docs/virtual-machines.md` shows it without any module. Guests repair it (`repair.rs`); this is for those that
    /// cannot.
    pub fn has_emulator_fault(&self) -> bool {
        has_emulator_fault(&self.text())
    }

    /// Whether its kernel warned of a race of its own: a task was given another class while it was being forked. Its first bad news is that.
    pub fn has_fork_race(&self) -> bool {
        has_fork_race(&self.text())
    }

    /// Whether RCU's thread waited for a timer that did not expire, on a CPU that was idle, before there was any BPF scheduler. Its first bad news
    /// is that.
    pub fn has_lost_timer(&self) -> bool {
        has_lost_timer(&self.text())
    }

    /// Whether its kernel warned that the timer of a deadline server was forwarded while it was queued, which none of ours is part of. Its first bad
    /// news is that.
    pub fn has_forwarded_timer(&self) -> bool {
        has_forwarded_timer(&self.text())
    }

    /// What its kernel said if it may have taken a wrong rate for its clock: CPUs that run at once count in this machine's own counter, and the two
    /// timers that are asked how fast that goes do not agree if the emulator loses its processor meanwhile.
    pub(crate) fn wrong_clock(&self) -> Option<String> {
        wrong_clock(&self.text())
    }

    /// Why the machine is lost, with what to do next if that is the emulator's fault.
    pub(crate) fn with_emulator_fault(&self, reason: &str) -> String {
        match self.has_emulator_fault() {
            true => format!("{reason}, {EMULATOR_FAULT}"),
            false => reason.to_owned(),
        }
    }

    /// The first of them with what follows, which says which task and where: `count` lines at most, or none.
    pub fn first_finding(&self, count: usize) -> String {
        first_finding(&self.text(), count)
    }
}

fn wrong_clock(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("PIT calibration deviates from"))?;
    Some(line.trim().to_owned())
}

/// The lines of a kernel log that tell of an oops, a BUG, a WARNING, a stall or a lockup.
pub fn console_findings(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| BAD_NEWS.iter().any(|bad| line.contains(bad)))
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn tail(text: &str, count: usize) -> String {
    let (found, last) = (first_finding(text, FINDING_LINES), last_lines(text, count));
    match found.lines().next() {
        Some(first) if !last.contains(first) => format!("{found}\n[…]\n{last}"),
        _ => last,
    }
}

fn first_finding(text: &str, count: usize) -> String {
    let lines = text.lines().map(str::trim_end).skip_while(|line| console_findings(line).is_empty());
    lines.take(count).collect::<Vec<_>>().join("\n")
}

/// Whether the first bad news is a breakpoint where the kernel has none.
fn has_emulator_fault(text: &str) -> bool {
    let mut lines = text.lines().skip_while(|line| console_findings(line).is_empty());
    if !lines.next().is_some_and(|line| line.contains("Oops: int3: 0000 [#1]")) {
        return false;
    }
    // The dump marks the byte that would have been executed next. A real `int3` is the byte before it; one that stands before the rest of
    // a no-op belongs to the next change of the same place.
    let dumps = lines.filter_map(|line| line.split_once("Code: ")?.1.split_once(" <"));
    dumps.take(1).any(|(before, after)| !before.ends_with("cc") || after.starts_with("1f> 44 00 00"))
}

fn has_fork_race(text: &str) -> bool {
    let mut lines = text.lines().skip_while(|line| console_findings(line).is_empty());
    let is_warning =
        lines.next().is_some_and(|line| line.contains("WARNING: ") && line.contains(" at scx_disable_task+"));
    is_warning
        && lines.take_while(|line| !line.contains("end trace")).any(|line| line.contains(" __sched_setscheduler+"))
}

fn has_lost_timer(text: &str) -> bool {
    let is_bad = |line: &&str| !console_findings(line).is_empty();
    let had_scheduler =
        text.lines().take_while(|line| !is_bad(line)).any(|line| line.contains("sched_ext: BPF scheduler"));
    let mut lines = text.lines().skip_while(|line| !is_bad(line));
    let is_stall = lines.next().is_some_and(|line| line.contains("rcu: INFO: rcu_preempt detected stalls"));
    is_stall && !had_scheduler && lines.any(|line| line.contains("rcu: rcu_preempt kthread timer wakeup didn't happen"))
}

fn has_forwarded_timer(text: &str) -> bool {
    let mut lines = text.lines().skip_while(|line| console_findings(line).is_empty());
    let is_warning =
        lines.next().is_some_and(|line| line.contains("WARNING: ") && line.contains(" at hrtimer_forward+"));
    // The function that forwards it. The modules that are loaded are named in another line.
    is_warning && lines.take_while(|line| !line.contains("end trace")).any(|line| line.contains(" dl_task_timer+"))
}

/// Finds a guest that has printed nothing for too long.
pub(crate) struct Silence<'a> {
    console: &'a Console,
    most: Duration,
    /// How long its log was, and since when it has been that long.
    seen: Cell<(u64, Instant)>,
}

impl<'a> Silence<'a> {
    pub(crate) fn new(console: &'a Console, most: Duration) -> Self {
        Self { console, most, seen: Cell::new((0, Instant::now())) }
    }

    /// To be asked every now and then.
    pub(crate) fn check(&self) -> Result<(), String> {
        // Before QEMU has made the file there is nothing in it.
        let length = fs::metadata(&self.console.log).map_or(0, |log| log.len());
        let (before, since) = self.seen.get();
        if length != before {
            self.seen.set((length, Instant::now()));
        } else if since.elapsed() > self.most {
            return Err(format!("its kernel has printed nothing for {} s", self.most.as_secs()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_read_does_not_pass_for_one_without_findings() {
        let console = Console { log: "/nowhere/console".into() };
        let findings = console.findings();
        assert!(findings.len() == 1 && findings[0].contains("/nowhere/console cannot be read"), "{findings:?}");
    }

    #[test]
    fn a_clock_that_was_set_by_the_wrong_timer_is_told_from_others() {
        let wrong = "[    0.000000] tsc: PIT calibration deviates from HPET: 459417 2596107\r\n[    0.000000] tsc: Using PIT calibration value\r\n";
        assert_eq!(
            wrong_clock(wrong).as_deref(),
            Some("[    0.000000] tsc: PIT calibration deviates from HPET: 459417 2596107")
        );
        assert_eq!(wrong_clock("[    0.000000] tsc: Detected 2596.107 MHz processor\r\n"), None);
    }

    #[test]
    fn a_guest_that_prints_now_and_then_is_not_silent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let console = Console { log: file.path().to_owned() };
        let silence = Silence::new(&console, Duration::from_millis(200));
        for line in 0..5 {
            fs::write(&console.log, "a line\n".repeat(line)).unwrap();
            assert_eq!(silence.check(), Ok(()));
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(silence.check(), Err("its kernel has printed nothing for 0 s".into()));
    }

    #[test]
    fn bad_news_is_found_and_ordinary_lines_are_not() {
        let log = "\
[    0.000000] Linux version 7.3.4\r
[    1.000000] x86/fpu: Supporting XSAVE feature\r
[    2.000000] sched_ext: BPF scheduler \"ekiden\" enabled\r
[    3.100000] WARNING: kernel/sched/ext.c:1234 at foo+0x1/0x2, CPU#1: kworker/1:1/50\r
[    3.200000] BUG: kernel NULL pointer dereference, address: 0000000000000000\r
[    3.300000] Oops: Oops: 0000 [#1] SMP NOPTI\r
[    9.000000] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [hog:77]\r
[    9.500000] rcu: INFO: rcu_preempt self-detected stall on CPU\r
[   10.000000] INFO: task kworker/0:1:9 blocked for more than 120 seconds.\r
[   11.000000] BUG kmalloc-64 (Tainted: G           OE      ): Poison overwritten\r
";
        let found = console_findings(log);
        let times: Vec<&str> = found.iter().map(|line| &line[1..13]).map(str::trim).collect();
        expect_test::expect![[r#"
            [
                "3.100000",
                "3.200000",
                "3.300000",
                "9.000000",
                "9.500000",
                "10.000000",
                "11.000000",
            ]
        "#]]
        .assert_debug_eq(&times);
    }

    #[test]
    fn a_tail_begins_with_the_bad_news_that_it_would_not_show() {
        let log = "fine\r\nBUG: bad\r\nRIP: here\r\nmore\r\n";
        assert_eq!(tail(log, 1), "BUG: bad\nRIP: here\nmore\n[…]\nmore");
        assert_eq!((tail(log, 3).as_str(), tail("fine\nwell\n", 1).as_str()), ("BUG: bad\nRIP: here\nmore", "well"));
    }

    #[test]
    fn what_follows_the_first_bad_news_is_kept_with_it() {
        let log = "fine\r\nBUG: bad\r\nRIP: here\r\nmore\r\n";
        assert_eq!((first_finding(log, 2).as_str(), first_finding("fine", 2).as_str()), ("BUG: bad\nRIP: here", ""));
    }

    #[test]
    fn a_breakpoint_where_the_kernel_has_none_is_the_emulators_fault() {
        let oops = |code: &str| {
            format!(
                "[ 1.0] fine\r\n[ 10.4] Oops: int3: 0000 [#1] SMP NOPTI\r\n[ 10.5] RIP: 0010:update_se+0x4c/0x410\r\n\
                 [ 10.6] Code: bf 0\r\n** replaying previous printk message **\r\n[ 10.6] Code: {code} 48\r\n\
                 [ 10.7] Code: 0f 05 cc <f7> d8\r\n"
            )
        };
        assert!(has_emulator_fault(&oops("4c 01 63 78 66 <90>")));
        assert!(has_emulator_fault(&oops("4c 01 63 78 cc <1f> 44 00 00")));
        assert!(!has_emulator_fault(&oops("4c 01 63 78 cc <90>")));
        assert!(!has_emulator_fault(&("WARNING: first\n".to_owned() + &oops("4c 01 63 78 66 <90>"))));
        assert!(!has_emulator_fault("Oops: Oops: 0000 [#1] SMP\nCode: 66 <90>\n"));
        assert!(!has_emulator_fault("Oops: int3: 0000 [#1] SMP\n"));
    }

    #[test]
    fn a_class_that_is_set_in_the_middle_of_a_fork_is_told_from_other_warnings() {
        let warning = |place: &str, caller: &str| {
            format!(
                "[ 1.0] WARNING: kernel/sched/ext/ext.c:4092 at {place}+0x172/0x1c0, CPU#1: a/125\n[ 1.1]  {caller}+0x352/0xd10\n"
            )
        };
        assert!(has_fork_race(&warning("scx_disable_task", "__sched_setscheduler")));
        assert!(!has_fork_race(&warning("scx_disable_task", "scx_root_disable")));
        assert!(!has_fork_race(&warning("scx_enable_task", "__sched_setscheduler")));
        let ended = warning("scx_disable_task", "scx_root_disable") + "---[ end trace 0 ]---\n";
        assert!(!has_fork_race(&(ended + &warning("scx_disable_task", "__sched_setscheduler"))));
    }

    #[test]
    fn a_deadline_timer_that_is_forwarded_is_told_from_other_timers_and_warnings() {
        let warning = |place: &str, caller: &str| {
            format!(
                "[ 1.0] WARNING: kernel/time/hrtimer.c:1098 at {place}+0x7b/0xc0, CPU#2: spin/125\n[ 1.1] Modules linked in: ekiden(OE)\n\
                 [ 1.1]  {caller}+0x35b/0x8b0\n[ 1.1]  __hrtimer_run_queues+0xf4/0x240\n"
            )
        };
        assert!(has_forwarded_timer(&warning("hrtimer_forward", "dl_task_timer")));
        assert!(!has_forwarded_timer(&warning("hrtimer_forward", "ekiden_walk")));
        assert!(!has_forwarded_timer(&warning("hrtimer_start_range_ns", "dl_task_timer")));
        let ended = warning("hrtimer_forward", "ekiden_walk") + "---[ end trace 0 ]---\n";
        assert!(!has_forwarded_timer(&(ended + &warning("hrtimer_forward", "dl_task_timer"))));
        assert!(!has_forwarded_timer(&("BUG: first\n".to_owned() + &warning("hrtimer_forward", "dl_task_timer"))));
    }

    #[test]
    fn a_stall_of_rcu_by_a_lost_timer_is_the_machines_only_before_there_is_a_scheduler() {
        let stall = "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\nrcu: \t0-...!: (2 GPs behind) fqs=1 (false positive?)\n";
        let timer = "rcu: rcu_preempt kthread timer wakeup didn't happen for 5263 jiffies! g-959 ->state=I\n";
        let enabled = "sched_ext: BPF scheduler \"ekiden\" enabled\n";
        assert!(has_lost_timer(&[stall, timer].concat()));
        assert!(has_lost_timer(&[stall, timer, enabled].concat()));
        assert!(!has_lost_timer(&[enabled, stall, timer].concat()));
        assert!(!has_lost_timer(stall));
        assert!(!has_lost_timer(&["WARNING: first\n", stall, timer].concat()));
        assert!(!has_lost_timer(&["watchdog: BUG: soft lockup - CPU#0 stuck for 26s!\n", timer].concat()));
    }
}
