//! Runs parts, two at a time, and says every two seconds at most what runs.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::parts::{LONGEST, Part};

/// How many parts run at a time.
const SLOTS: usize = 2;

/// Nothing is silent for longer; a little less, as printing takes its time too.
const SILENCE_MAX: Duration = Duration::from_millis(1800);

/// How much of what a part printed is shown if it fails, in lines.
const SHOWN_LINES: usize = 120;

/// How much of what a panic said is repeated at the end of the run, in lines, and of each line, in characters.
const REASON_LINES: usize = 8;
const REASON_CHARACTERS: usize = 600;

/// What all parts came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    pub(crate) failed_parts: Vec<String>,
    /// What panics in them said.
    pub(crate) reasons: Vec<String>,
}

pub(crate) struct Runner {
    /// Where what parts print is kept.
    logs: PathBuf,
    /// What parts have for temporary files.
    temporary: PathBuf,
    start: Instant,
    last_word: Instant,
    /// A part that takes longer is ended, and has failed.
    part_max: Duration,
    /// How long parts took the last time.
    known: BTreeMap<String, f64>,
    taken: BTreeMap<String, f64>,
    totals: Totals,
}

struct Running {
    part: Part,
    child: Child,
    start: Instant,
    log: PathBuf,
}

impl Runner {
    pub(crate) fn new(root: &Path, start: Instant) -> Result<Self> {
        let logs = root.join("target/suite");
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        let temporary = root.join("target/tmp/run");
        // What an interrupted run has left.
        let _ = fs::remove_dir_all(&temporary);
        fs::create_dir_all(&temporary).with_context(|| format!("cannot create {}", temporary.display()))?;
        let known = fs::read_to_string(logs.join("seconds.json")).unwrap_or_default();
        Ok(Self {
            known: serde_json::from_str(&known).unwrap_or_default(),
            logs,
            temporary,
            start,
            last_word: start,
            part_max: Duration::MAX,
            taken: BTreeMap::new(),
            totals: Totals::default(),
        })
    }

    /// No part takes longer than this from now on.
    pub(crate) fn end_parts_after(&mut self, most: Duration) {
        self.part_max = most;
    }

    /// Where the parts' temporary files are.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Runs one part; whether it passed.
    pub(crate) fn run_one(&mut self, part: Part) -> bool {
        let failed_before = self.totals.failed_parts.len();
        self.run(vec![part]);
        self.totals.failed_parts.len() == failed_before
    }

    /// Runs all parts: those that take longest first, but those that are alone last, in the order in which they come.
    pub(crate) fn run(&mut self, parts: Vec<Part>) {
        let (alone, shared): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(|part| part.is_alone);
        let shared = longest_first(shared, |part| self.expected(part));
        let mut waiting: VecDeque<Part> = shared.into_iter().chain(alone).collect();
        let mut running: Vec<Running> = Vec::new();
        while !waiting.is_empty() || !running.is_empty() {
            if let Some(at) = next_to_start(&waiting, &running.iter().map(|running| &running.part).collect::<Vec<_>>())
            {
                let part = waiting.remove(at).expect("it is there");
                match self.start(part) {
                    Ok(started) => running.push(started),
                    Err((name, error)) => {
                        eprintln!("{name}: {error:#}");
                        self.totals.failed_parts.push(name);
                    }
                }
                continue;
            }
            thread::sleep(Duration::from_millis(20));
            let mut at = 0;
            while at < running.len() {
                match running[at].child.try_wait() {
                    Ok(None) if running[at].start.elapsed() > self.part_max => {
                        let mut late = running.swap_remove(at);
                        eprintln!("{} is ended: no part may take {:?}", late.part.name, self.part_max);
                        // It may have ended this moment.
                        let _ = (late.child.kill(), late.child.wait());
                        self.end(&late, false);
                    }
                    Ok(None) => at += 1,
                    Ok(Some(status)) => {
                        let ended = running.swap_remove(at);
                        self.end(&ended, status.success());
                    }
                    Err(error) => {
                        eprintln!("cannot wait for {}: {error}", running[at].part.name);
                        let ended = running.swap_remove(at);
                        self.end(&ended, false);
                    }
                }
            }
            if self.last_word.elapsed() > SILENCE_MAX {
                self.say_what_runs(&running, waiting.len());
            }
        }
    }

    fn expected(&self, part: &Part) -> f64 {
        if let Some(seconds) = self.known.get(&part.name) {
            return *seconds;
        }
        // What has not been run here yet: guests take longest.
        match LONGEST.iter().rev().position(|name| *name == part.name) {
            _ if part.boots => 1000.0,
            Some(place) => 100.0 + place as f64,
            None => 1.0,
        }
    }

    fn start(&mut self, part: Part) -> Result<Running, (String, anyhow::Error)> {
        let log = self.logs.join(file_name(&part.name));
        let try_start = || -> Result<Child> {
            let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
            // It ends with this program, however that ends.
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).args(&part.command).current_dir(&part.directory);
            command.envs(part.environment.iter().map(|(name, value)| (name, value))).env("TMPDIR", &self.temporary);
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
            command.spawn().with_context(|| format!("cannot start {}", part.command.join(" ")))
        };
        match try_start() {
            Ok(child) => {
                self.say(&format!("begins: {}", part.name));
                Ok(Running { part, child, start: Instant::now(), log })
            }
            Err(error) => Err((part.name.clone(), error)),
        }
    }

    fn end(&mut self, ended: &Running, is_good: bool) {
        let seconds = ended.start.elapsed().as_secs_f64();
        let name = &ended.part.name;
        self.taken.insert(name.clone(), seconds);
        let text = String::from_utf8_lossy(&fs::read(&ended.log).unwrap_or_default()).into_owned();
        add_results(&text, &mut self.totals);
        self.say(&format!("{} in {seconds:.1} s: {name}", if is_good { "passed" } else { "FAILED" }));
        if !is_good {
            self.totals.failed_parts.push(name.clone());
            self.totals.reasons.extend(reasons(&text));
            let lines: Vec<&str> = text.lines().collect();
            let shown = lines.len().saturating_sub(SHOWN_LINES);
            for failure in lines[..shown].iter().filter(|line| line.contains("FAILED") || line.contains("panicked at"))
            {
                eprintln!("  | {failure}");
            }
            for line in &lines[shown..] {
                eprintln!("  | {line}");
            }
        }
    }

    fn say_what_runs(&mut self, running: &[Running], waiting: usize) {
        let of = |running: &Running| {
            let text = fs::read(&running.log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).into_owned();
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let last: String = last.trim().chars().take(70).collect();
            format!("{} {:.0} s [{last}]", running.part.name, running.start.elapsed().as_secs_f64())
        };
        let all: Vec<String> = running.iter().map(of).collect();
        self.say(&format!("running: {}; {waiting} wait", all.join(", ")));
    }

    fn say(&mut self, line: &str) {
        let since = self.start.elapsed().as_secs();
        // On a terminal, what runs is rewritten.
        let is_passing = std::io::stderr().is_terminal() && line.starts_with("running: ");
        let mut stderr = std::io::stderr().lock();
        // Without a reader there is nothing to do.
        let _ = if is_passing {
            let short: String = line.chars().take(110).collect();
            write!(stderr, "\r\x1b[K[{:02}:{:02}] {short}", since / 60, since % 60)
        } else {
            let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
            writeln!(stderr, "{clear}[{:02}:{:02}] {line}", since / 60, since % 60)
        };
        self.last_word = Instant::now();
    }

    /// The parts that took longest, as a table.
    pub(crate) fn slowest(&self, count: usize) -> String {
        let mut parts: Vec<(&String, &f64)> = self.taken.iter().collect();
        parts.sort_by(|one, other| other.1.total_cmp(one.1));
        let rows = parts.iter().take(count).map(|(name, seconds)| format!("{seconds:>8.1} s  {name}\n"));
        format!("The slowest parts:\n{}", rows.collect::<String>())
    }

    /// Keeps for the next time how long each part took.
    pub(crate) fn keep_seconds(&mut self) {
        self.known.extend(self.taken.clone());
        let text = serde_json::to_string_pretty(&self.known).expect("names and numbers become JSON");
        // Without it the next run takes a little longer.
        let _ = fs::write(self.logs.join("seconds.json"), text);
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// How long all of it took so far.
    pub(crate) fn minutes(&self) -> f64 {
        self.start.elapsed().as_secs_f64() / 60.0
    }
}

/// Those that take longest first. Parts that need the same lock run one after the other, so each of them counts with those that are left then:
/// a run does not end with some of them while the other slot is empty.
fn longest_first(mut parts: Vec<Part>, expected: impl Fn(&Part) -> f64) -> Vec<Part> {
    parts.sort_by(|one, other| expected(other).total_cmp(&expected(one)));
    let mut left: BTreeMap<&str, f64> = BTreeMap::new();
    let until_the_end = |part: &Part| {
        let seconds = expected(part);
        part.locks.map_or(seconds, |lock| {
            let of_lock = left.entry(lock).or_default();
            *of_lock += seconds;
            *of_lock
        })
    };
    let mut seconds: Vec<f64> = parts.iter().rev().map(until_the_end).collect();
    seconds.reverse();
    let mut parts: Vec<(f64, Part)> = seconds.into_iter().zip(parts).collect();
    parts.sort_by(|one, other| other.0.total_cmp(&one.0));
    parts.into_iter().map(|(_, part)| part).collect()
}

/// The waiting part that can start beside the running ones. A part that runs alone is last, and waits until nothing runs.
fn next_to_start(waiting: &VecDeque<Part>, running: &[&Part]) -> Option<usize> {
    if running.is_empty() {
        return (!waiting.is_empty()).then_some(0);
    }
    if running.iter().any(|part| part.is_alone) {
        return None;
    }
    let is_full = running.iter().filter(|part| !part.waits).count() >= SLOTS;
    let is_locked = |part: &Part| part.locks.is_some() && running.iter().any(|running| running.locks == part.locks);
    waiting.iter().position(|part| !(part.is_alone || is_locked(part)) && (part.waits || !is_full))
}

/// What the file is called that keeps what a part prints.
pub(crate) fn file_name(part: &str) -> String {
    let words: String = part.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("{words}.log")
}

/// What panics said, each with its place and its first lines.
fn reasons(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let of = |at: usize| {
        let said = lines[at..].iter().take(REASON_LINES);
        said.map(|line| line.chars().take(REASON_CHARACTERS).collect::<String>()).collect::<Vec<_>>().join("\n")
    };
    (0..lines.len()).filter(|at| lines[*at].contains("panicked at")).map(of).collect()
}

/// Adds what test programs say of themselves at their ends.
fn add_results(text: &str, totals: &mut Totals) {
    for line in text.lines().filter_map(|line| line.trim().strip_prefix("test result: ")) {
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next().and_then(|word| word.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match what {
                "passed" => totals.passed += number,
                "failed" => totals.failed += number,
                "ignored" => totals.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(root: &Path, name: &str, line: &str) -> Part {
        let mut part = Part::new(root, name, "sh -c");
        part.command.push(line.to_owned());
        part
    }

    #[test]
    fn results_of_test_programs_are_added() {
        let mut totals = Totals::default();
        add_results(
            "test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.93s\n\
             noise\ntest result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out",
            &mut totals,
        );
        assert_eq!((totals.passed, totals.failed, totals.ignored), (9, 3, 1));
    }

    #[test]
    fn what_a_panic_said_is_kept_with_its_first_lines() {
        let said: String = (0..20).map(|line| format!("line {line} {}\n", "x".repeat(1_000))).collect();
        let all = reasons(&format!("before\nthread 'one' panicked at a.rs:1:2:\n{said}"));
        assert_eq!(all.len(), 1);
        assert!(all[0].starts_with("thread 'one' panicked at a.rs:1:2:\nline 0 x"), "{}", all[0]);
        assert_eq!(all[0].lines().count(), REASON_LINES);
        assert!(all[0].lines().all(|line| line.len() <= REASON_CHARACTERS));
        assert_eq!(reasons("test a ... ok\n"), [""; 0]);
    }

    #[test]
    fn a_part_that_does_not_end_is_ended_and_has_failed() {
        let root = tempfile::tempdir().unwrap();
        let mut runner = Runner::new(root.path(), Instant::now()).unwrap();
        runner.end_parts_after(Duration::from_millis(300));
        assert!(!runner.run_one(shell(root.path(), "hangs", "exec sleep 1000")));
        assert!(runner.run_one(shell(root.path(), "ends", "true")));
        assert_eq!(runner.totals().failed_parts, ["hangs"]);
        assert!(runner.minutes() < 1.0);
    }

    #[test]
    fn two_parts_run_at_a_time_and_one_that_is_alone_has_no_company() {
        let root = tempfile::tempdir().unwrap();
        let mut runner = Runner::new(root.path(), Instant::now()).unwrap();
        // Each waits for the other.
        let meet = |own: &str, other: &str| {
            format!("touch {own}; for n in $(seq 100); do [ -e {other} ] && exit 0; sleep 0.1; done; exit 1")
        };
        let mut alone = shell(root.path(), "alone", "rm one two || exit 1; sleep 0.2; [ ! -e late ]");
        alone.is_alone = true;
        let parts =
            vec![alone, shell(root.path(), "one", &meet("one", "two")), shell(root.path(), "two", &meet("two", "one"))];
        runner.run(parts);
        assert_eq!(runner.totals().failed_parts, [""; 0]);
    }

    #[test]
    fn beside_a_part_something_else_runs_and_none_that_needs_the_same_lock() {
        let parts = |names: &[&str]| -> VecDeque<Part> {
            let locks = |name: &str| ["cargo", "module"].into_iter().find(|lock| name.starts_with(lock));
            let part = |name: &&str| Part { locks: locks(name), ..Part::new(Path::new("/"), name, "") };
            names.iter().map(part).collect()
        };
        let (running, mut waiting) = (parts(&["cargo 1"]), parts(&["cargo 2", "test", "alone", "module 1"]));
        waiting[2].is_alone = true;
        assert_eq!(next_to_start(&waiting, &[]), Some(0));
        assert_eq!(next_to_start(&waiting, &[&running[0]]), Some(1));
        waiting.remove(1);
        assert_eq!(next_to_start(&waiting, &[&running[0]]), Some(2));
        let module = waiting.remove(2).unwrap();
        assert_eq!(next_to_start(&waiting, &[&running[0]]), None);
        assert_eq!(next_to_start(&waiting, &[&module]), Some(0));
        assert_eq!(next_to_start(&waiting, &[&running[0], &running[0]]), None);
        waiting.push_back(Part { waits: true, ..Part::new(Path::new("/"), "sleeps", "") });
        assert_eq!(next_to_start(&waiting, &[&running[0], &running[0]]), Some(waiting.len() - 1));
        assert_eq!(next_to_start(&parts(&["test"]), &[&running[0], &waiting[waiting.len() - 1]]), Some(0));
    }

    #[test]
    fn parts_that_wait_for_each_other_begin_as_one_part_that_takes_as_long() {
        let part = |(name, seconds, locks)| (seconds, Part { locks, ..Part::new(Path::new("/"), name, "") });
        let all = [
            ("short", 1.0, None),
            ("cargo 3", 2.0, Some("cargo")),
            ("long", 9.0, None),
            ("cargo 1", 5.0, Some("cargo")),
            ("module", 7.0, Some("module")),
            ("cargo 2", 4.0, Some("cargo")),
        ]
        .map(part);
        let seconds: BTreeMap<String, f64> = all.iter().map(|(seconds, part)| (part.name.clone(), *seconds)).collect();
        let parts = longest_first(all.into_iter().map(|(_, part)| part).collect(), |part| seconds[&part.name]);
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["cargo 1", "long", "module", "cargo 2", "cargo 3", "short"]);
    }

    #[test]
    fn a_part_that_fails_is_named_and_its_output_kept() {
        let root = tempfile::tempdir().unwrap();
        let mut runner = Runner::new(root.path(), Instant::now()).unwrap();
        assert!(!runner.run_one(shell(root.path(), "bad one", "echo why; exit 3")));
        assert_eq!(runner.totals().failed_parts, ["bad one"]);
        assert_eq!(fs::read_to_string(root.path().join("target/suite/bad-one.log")).unwrap(), "why\n");
    }
}
