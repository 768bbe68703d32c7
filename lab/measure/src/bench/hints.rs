//! `ekiden bench hints`: what hints cost, what they cost those who say nothing, what a hostile program can do with them, and
//! what they are good for.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ekiden_bench::{Judged, Limit, Summary, number, table};
use ekiden_loader::{Beside, Status};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Unit, Verdict,
    asked::{Benchmark, Shown},
    candidates::{Candidate, Candidates, PolicyArgs, under},
    guest::Clock,
    load,
    record::pipes,
};
use crate::{
    machine::{Shape, load_program},
    progress::Progress,
    request::Measurement,
    session::Plan,
};

/// The policy that is told things, and that of short turns.
pub(crate) const TOLD: &str = "locality";
const TURNS: &str = "shinjuku";
/// The policies beside which queues are open to the first.
const SILENT: [&str; 2] = ["fifo", "wfq"];

/// Where the two processes of a pipe are.
const PLACES: [(&str, &str); 2] = [("one_cpu", "0,0"), ("two_cpus_across", "0,1")];

/// Queues that are open and silent.
const QUEUES: &str = "100";

/// For how long a policy is flooded, each time.
const FLOOD_MS: &str = "300";

/// What must be reached, by name of the figure.
const LIMITS: &[Limit] = &[
    Limit { name: "one hint without a ring, instructions in the program", at_most: 60.0 },
    Limit { name: "one hint in the kernel and the policy, instructions", at_most: 400.0 },
    // 1.00 to two decimals.
    Limit { name: "fifo, one CPU: 100 silent queues ÷ none", at_most: 1.005 },
    Limit { name: "fifo, two CPUs across: 100 silent queues ÷ none", at_most: 1.005 },
    Limit { name: "wfq, one CPU: 100 silent queues ÷ none", at_most: 1.005 },
    Limit { name: "wfq, two CPUs across: 100 silent queues ÷ none", at_most: 1.005 },
    Limit { name: "hostile flood on the same CPU: what others lose", at_most: 0.10 },
    Limit { name: "hostile flood on another CPU: what others lose", at_most: 0.10 },
    Limit { name: "a turn of 10 us, median, us", at_most: 12.0 },
    Limit { name: "a turn of 10 us, 99 %, us", at_most: 20.0 },
    WAKEUP,
];

/// What hints are good for.
pub(crate) const WAKEUP: Limit =
    Limit { name: "locality with hints ÷ the kernel's own, wake-up of a worker, 99 %", at_most: 0.5 };

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench hints --vm --check
      instructions, in a virtual machine of four CPUs; exits with 116 if a limit
      is missed
  ekiden bench hints --vm --json   one JSON object
  sudo ekiden bench hints          nanoseconds, in the kernel of this machine
Silent queues are open to `locality`, which runs beside the policy that has the
pipe. What others lose is what a process works less beside one that floods
`locality` with hints and rings, than beside one that works as well. Turns are
those of two threads under `shinjuku` that want one CPU, from a thread's first
look at the clock to its last. Workers are woken up by message threads, as
schbench does, without hints, with them, under the kernel's own scheduler, and
there on one CPU.")]
pub(crate) struct HintsBench {
    #[command(flatten)]
    source: PolicyArgs,
    /// How often the pipe is timed with queues and without; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Round trips that are timed each time
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
}

/// All that was measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HintsReport {
    bench: String,
    kernel: String,
    /// Each with its name.
    figures: Vec<(String, f64)>,
    limits: Vec<Judged>,
    still_scheduler: bool,
    passed: bool,
}

/// What `ekiden-load hints` prints.
#[derive(Deserialize)]
struct Costs {
    scheduler: Option<String>,
    send: f64,
    ring: f64,
    heard: f64,
}

/// What `ekiden-load flood` prints.
#[derive(Deserialize)]
struct Kept {
    scheduler: Option<String>,
    work: f64,
    written: f64,
    heard: f64,
}

/// What `ekiden-load turns` and `ekiden-load wakeups` print.
#[derive(Deserialize)]
pub(crate) struct Spread {
    pub(crate) scheduler: Option<String>,
    pub(crate) n: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Benchmark for HintsBench {
    const NAME: &'static str = "hints";
    const CLOCK: Clock = Clock::Exact;

    fn candidates(&self) -> Candidates {
        let policies: Vec<String> = SILENT.into_iter().chain([TOLD, TURNS]).map(str::to_owned).collect();
        Candidates::new(&policies, &self.source)
    }

    /// Two sets of threads have to have room to be apart.
    fn fit(&self, shape: &mut Shape) {
        shape.cpus = shape.cpus.max(4);
    }
}

impl Measurement for HintsBench {
    type Figures = HintsReport;

    fn measure(&self, _unit: Unit) -> Result<HintsReport> {
        let mut progress = Progress::new();
        let (_, modules) = self.candidates().prepare(&mut progress)?;
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let speed = load::calibrate()?;
        let mut report = HintsReport::new(load::kernel_release()?);
        progress.step("what a hint costs");
        report.costs(&modules)?;
        for policy in SILENT {
            self.silent(policy, &modules, &mut report, &mut progress)?;
        }
        progress.step("what others keep beside a flood");
        report.flood(&modules)?;
        progress.step("how long a turn is");
        report.turns(&modules)?;
        progress.step("how long workers wait to run");
        report.wakeups(&modules, &speed)?;
        report.judge();
        Ok(report)
    }
}

impl Shown for HintsReport {
    fn text(&self) -> String {
        self.to_text()
    }

    fn verdict(&self) -> Verdict {
        Verdict::of_limits(&self.limits, self.still_scheduler)
    }
}

impl HintsBench {
    /// A pipe under a policy while queues are open to another one, and while none are.
    fn silent(&self, policy: &str, modules: &Path, report: &mut HintsReport, progress: &mut Progress) -> Result<()> {
        let plan = Plan { flight_kib: 0, ..Plan::new(policy, modules) };
        let mut all: Vec<(&str, [Vec<f64>; 2])> =
            PLACES.iter().map(|(place, _)| (*place, [Vec::new(), Vec::new()])).collect();
        let (_, stayed) = under(&plan, || {
            let told = Plan { flight_kib: 0, beside: Beside::Others, ..Plan::new(TOLD, modules) }.start()?;
            for turn in 0..=self.repeat {
                progress.step(format!("turn {turn} of {}: silent queues beside {policy}", self.repeat));
                for with in [0, 1] {
                    let held = (with == 1).then(Holder::start).transpose()?;
                    let values = pipes(policy, self.round_trips, &PLACES)?;
                    drop(held);
                    // The first turn warms caches of all kinds.
                    for ((_, kept), (_, value)) in all.iter_mut().zip(values).filter(|_| turn > 0) {
                        kept[with].push(value);
                    }
                }
            }
            told.check()
        })?;
        report.still_scheduler &= stayed;
        for (place, [without, with]) in &all {
            let median = |values: &[f64]| Summary::of(values).map(|summary| summary.median);
            let (Some(without), Some(with)) = (median(without), median(with)) else { continue };
            let what = format!(
                "{policy}, {}: ",
                place.replace("one_cpu", "one CPU").replace("two_cpus_across", "two CPUs across")
            );
            report.note(format!("{what}a round trip, no queue"), without);
            report.note(format!("{what}100 silent queues ÷ none"), with / without);
        }
        Ok(())
    }
}

/// A process that has queues open, and says nothing in them.
struct Holder(Child);

impl Holder {
    fn start() -> Result<Self> {
        let mut child = Command::new(load_program())
            .args(["hold-queues", "--policy", TOLD, "--count", QUEUES])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run ekiden-load")?;
        let mut said = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut said).context("cannot read what ekiden-load says")?;
        }
        let holder = Self(child);
        let status = Status::read()?.unwrap_or_default();
        let open = status.find(Some(TOLD))?.queues.as_ref().map_or(0, |queues| queues.open);
        ensure!(open.to_string() == QUEUES, "{open} queues are open instead of {QUEUES}: {said}");
        Ok(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// What `ekiden-load` prints under a scheduler that is in charge.
fn of_load<T: DeserializeOwned>(args: &[&str]) -> Result<T> {
    serde_json::from_str(&load::output(args)?).context("ekiden-load says something strange")
}

/// Workers that are woken up, under one scheduler.
pub(crate) fn wakeups(candidate: &Candidate, speed: &str, more: &[&str]) -> Result<Spread> {
    let spread: Spread = of_load(&[&["wakeups", "--json", "--loops-per-ms", speed], more].concat())?;
    load::expect(candidate, spread.scheduler.as_deref())?;
    Ok(spread)
}

impl HintsReport {
    fn new(kernel: String) -> Self {
        let (figures, limits) = (Vec::new(), Vec::new());
        Self { bench: "hints".into(), kernel, figures, limits, still_scheduler: true, passed: false }
    }

    fn note(&mut self, name: impl Into<String>, value: f64) {
        self.figures.push((name.into(), value));
    }

    fn under<T>(&mut self, policy: &str, modules: &Path, work: impl FnOnce(&Candidate) -> Result<T>) -> Result<T> {
        let candidate = Candidate::Policy(policy.to_owned());
        let (done, stayed) = candidate.run(modules, || work(&candidate))?;
        self.still_scheduler &= stayed;
        done.context("the policy was taken out")
    }

    fn costs(&mut self, modules: &Path) -> Result<()> {
        let costs = self.under(TOLD, modules, |candidate| {
            let costs: Costs = of_load(&["hints", "--policy", TOLD, "--json"])?;
            load::expect(candidate, costs.scheduler.as_deref())?;
            Ok(costs)
        })?;
        self.note(LIMITS[0].name, costs.send);
        self.note(LIMITS[1].name, costs.heard);
        self.note("a ring without hints", costs.ring);
        Ok(())
    }

    fn flood(&mut self, modules: &Path) -> Result<()> {
        for (cpus, name) in [("0,0", LIMITS[6].name), ("0,1", LIMITS[7].name)] {
            let [flooded, worked] = self.under(TOLD, modules, |candidate| {
                let run = |more: &[&str]| -> Result<Kept> {
                    let args = ["flood", "--policy", TOLD, "--cpus", cpus, "--duration-ms", FLOOD_MS, "--json"];
                    let kept: Kept = of_load(&[&args, more].concat())?;
                    load::expect(candidate, kept.scheduler.as_deref())?;
                    Ok(kept)
                };
                Ok([run(&[])?, run(&["--work"])?])
            })?;
            ensure!(flooded.heard > 0.0 && worked.work > 0.0, "nothing was heard, or done");
            self.note(name, 1.0 - flooded.work / worked.work);
            self.note(format!("CPUs {cpus}: hints that were written"), flooded.written);
        }
        Ok(())
    }

    fn turns(&mut self, modules: &Path) -> Result<()> {
        let turns = self.under(TURNS, modules, |candidate| {
            let turns: Spread = of_load(&["turns", "--cpu", "0", "--turns", "1000", "--json"])?;
            load::expect(candidate, turns.scheduler.as_deref())?;
            Ok(turns)
        })?;
        self.note(LIMITS[8].name, turns.p50_us);
        self.note(LIMITS[9].name, turns.p99_us);
        self.note("turns", turns.n);
        Ok(())
    }

    fn wakeups(&mut self, modules: &Path, speed: &str) -> Result<()> {
        let own = wakeups(&Candidate::Default, speed, &[])?;
        let one_cpu = wakeups(&Candidate::Default, speed, &["--one-cpu"])?;
        let without = self.under(TOLD, modules, |candidate| wakeups(candidate, speed, &[]))?;
        let with = self.under(TOLD, modules, |candidate| wakeups(candidate, speed, &["--told", TOLD]))?;
        self.note(LIMITS[10].name, with.p99_us / own.p99_us);
        for (who, spread) in [
            ("the kernel's own", own),
            ("the kernel's own on one CPU", one_cpu),
            ("locality without hints", without),
            ("locality with hints", with),
        ] {
            self.note(format!("wake-up, {who}, median, us"), spread.p50_us);
            self.note(format!("wake-up, {who}, 99 %, us"), spread.p99_us);
            self.note(format!("wake-up, {who}, times"), spread.n);
        }
        Ok(())
    }

    fn judge(&mut self) {
        let figure = |name: &str| self.figures.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        self.limits = LIMITS.iter().map(|limit| limit.judge(figure(limit.name))).collect();
        self.passed = self.still_scheduler && self.limits.iter().all(|judged| judged.met);
    }

    fn to_text(&self) -> String {
        let figures = self.figures.iter().map(|(name, value)| [name.clone(), number(*value)]);
        let limits = self.limits.iter().map(Judged::cells);
        let stayed = if self.still_scheduler { "" } else { "\na policy was TAKEN OUT" };
        format!(
            "Linux {}\n{}\n{}{stayed}",
            self.kernel,
            table(&["hints", ""], figures),
            table(&["limit", "figure", "at most", ""], limits)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_misses_its_limit() {
        let mut report = HintsReport::new("7.0".into());
        report.note(LIMITS[0].name, 59.0);
        report.judge();
        assert!(report.limits[0].met && !report.limits[1].met && !report.passed);
        for limit in &LIMITS[1..] {
            report.note(limit.name, limit.at_most);
        }
        report.judge();
        assert!(report.passed, "{:?}", report.limits);
        assert!(report.to_text().contains("met"), "{}", report.to_text());
    }
}
