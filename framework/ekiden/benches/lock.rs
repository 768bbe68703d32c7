//! How fair `SpinLock` is, and what it costs, beside the test-and-set mutex of `spin` in the same run: `cargo bench -p ekiden --bench lock`,
//! or with `-- --json` at its end. 64 threads want one lock; of what each waits are printed the mean, the longest, and how often the
//! mean is in that. Instructions of a lock and an unlock without contention are counted by valgrind, if there is one, and are not to be
//! more than before calls stood in a queue; with `-- --check` the bench ends with 116 if they are. docs/containment.md has the figures.
//!
//! There are more threads than CPUs, so in both cases one that waits yields after each look, as it could not be preempted in the kernel.

use std::{
    env, fmt,
    hint::spin_loop,
    process::Command,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use ekiden::{
    SpinLock,
    host::{Patience, Since, Waits, wait_so},
};
use spin::mutex::SpinMutex;

const THREADS: u32 = 64;
const TIMES: u32 = 200;
/// Instructions of the loop in `pairs` with the lock before it had a queue (commit 2f21db8a), counted by this bench with rustc 1.95.0.
const BEFORE: f64 = 18.0;
/// What they may be now, as a multiple of that.
const LIMIT: f64 = 1.00;
/// How the bench ends if a limit is missed, as `ekiden bench --check` does.
const MISSED: i32 = 116;
/// The first argument of this program when valgrind counts its instructions.
const PAIRS: &str = "--pairs";

fn hold(count: &mut u64) {
    *count += 1;
    (0..50).for_each(|_| spin_loop());
}

fn hold_ours(lock: &SpinLock<u64>) -> Duration {
    let since = Instant::now();
    let mut count = lock.lock();
    let waited = since.elapsed();
    hold(&mut count);
    waited
}

fn hold_spin(lock: &SpinMutex<u64>) -> Duration {
    let since = Instant::now();
    let mut count = loop {
        match lock.try_lock() {
            Some(count) => break count,
            None => thread::yield_now(),
        }
    };
    let waited = since.elapsed();
    hold(&mut count);
    waited
}

struct Row {
    lock: &'static str,
    mean: Duration,
    longest: Duration,
    instructions: Option<f64>,
}

impl Row {
    fn of(lock: &'static str, hold: impl Fn() -> Duration + Sync) -> Self {
        let all_there = Barrier::new(THREADS as usize);
        let waits = || {
            all_there.wait();
            (0..TIMES)
                .map(|_| hold())
                .fold((Duration::ZERO, Duration::ZERO), |(sum, most), wait| (sum + wait, most.max(wait)))
        };
        let (sum, longest) = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(waits)).collect();
            let all = threads.into_iter().map(|thread| thread.join().unwrap());
            all.fold((Duration::ZERO, Duration::ZERO), |(sum, most), (own, longest)| (sum + own, most.max(longest)))
        });
        Self { lock, mean: sum / (THREADS * TIMES), longest, instructions: instructions(lock) }
    }

    fn ratio(&self) -> f64 {
        self.longest.as_secs_f64() / self.mean.as_secs_f64()
    }

    fn json(&self) -> String {
        let Self { lock, mean, longest, instructions } = self;
        let instructions = instructions.map_or("null".into(), |count| format!("{count:.1}"));
        format!(
            "{{\"lock\":\"{lock}\",\"mean_wait_ns\":{},\"longest_wait_ns\":{},\"ratio\":{:.1},\"instructions\":{instructions}}}",
            mean.as_nanos(),
            longest.as_nanos(),
            self.ratio(),
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock, mean, longest, instructions } = self;
        let (mean_us, longest_us) = (mean.as_secs_f64() * 1e6, longest.as_secs_f64() * 1e6);
        write!(f, "{lock:8} mean wait {mean_us:8.1} us, longest {longest_us:10.1} us, ratio {:8.1}", self.ratio())?;
        match instructions {
            Some(count) => write!(f, ", {count:.1} instructions without contention"),
            None => write!(f, "; instructions are not counted without valgrind"),
        }
    }
}

/// Whether a lock without contention costs no more than it did, if that could be counted.
struct Verdict(Option<f64>);

impl Verdict {
    fn of(ours: &Row) -> Self {
        Self(ours.instructions.map(|instructions| instructions / BEFORE))
    }

    fn is_missed(&self) -> bool {
        self.0.is_some_and(|ratio| ratio > LIMIT)
    }

    fn word(&self) -> &'static str {
        match self.0 {
            None => "unknown",
            Some(_) if self.is_missed() => "missed",
            Some(_) => "kept",
        }
    }

    fn json(&self) -> String {
        let ratio = self.0.map_or("null".into(), |ratio| format!("{ratio:.2}"));
        format!("{{\"before\":{BEFORE:.1},\"ratio\":{ratio},\"limit\":{LIMIT:.2},\"verdict\":\"{}\"}}", self.word())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = self.0.map_or("?".into(), |ratio| format!("{ratio:.2}"));
        write!(f, "instructions / {BEFORE:.1} before there was a queue: {ratio}, at most {LIMIT:.2}: {}", self.word())
    }
}

/// How many instructions a lock and an unlock take: the difference between two runs.
fn instructions(lock: &str) -> Option<f64> {
    const MORE: u32 = 100_000;
    let counted = |pairs: u32| -> Option<f64> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(env::current_exe().ok()?);
        let output = valgrind.args([PAIRS, lock, &pairs.to_string()]).output().ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.split("Collected :").nth(1)?.split_whitespace().next()?.parse().ok()
    };
    Some((counted(2 * MORE)? - counted(MORE)?) / f64::from(MORE))
}

/// Takes the lock so often; what the loop has besides is an addition, a comparison and a branch.
fn pairs(lock: &str, times: u32) {
    let (ours, spin) = (SpinLock::new(0_u64), SpinMutex::<u64>::new(0));
    match lock {
        "SpinLock" => (0..times).for_each(|_| *std::hint::black_box(&ours).lock() += 1),
        _ => (0..times).for_each(|_| *std::hint::black_box(&spin).lock() += 1),
    }
}

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [first, lock, times] = &args[..] {
        if first == PAIRS {
            return pairs(lock, times.parse().unwrap());
        }
    }
    let look = |_: &mut Since| {
        thread::yield_now();
        Patience::GoOn
    };
    wait_so(Waits { begin: || Since([0; 4]), look, end: |_| () });
    let (ours, spin) = (SpinLock::new(0), SpinMutex::new(0));
    let rows = [Row::of("SpinLock", || hold_ours(&ours)), Row::of("spin", || hold_spin(&spin))];
    let verdict = Verdict::of(&rows[0]);
    if args.iter().any(|arg| arg == "--json") {
        println!("{{\"locks\":[{}],\"verdict\":{}}}", rows.each_ref().map(Row::json).join(","), verdict.json());
    } else {
        println!("{THREADS} threads on one lock, each {TIMES} times");
        rows.iter().for_each(|row| println!("{row}"));
        println!("{verdict}");
    }
    if args.iter().any(|arg| arg == "--check") && verdict.is_missed() {
        std::process::exit(MISSED);
    }
}
