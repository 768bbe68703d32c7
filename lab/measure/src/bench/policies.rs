//! `ekiden bench policies`: what it costs one policy that others are there too, that states of tasks are checked, and that
//! control groups have limits.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::{Comparison, DEFAULT, Limit, Measurements};
use ekiden_engine::Checks;
use ekiden_loader::{Beside, Control, Inherit, Status, Who, choose};
use serde::{Deserialize, Serialize};

use super::{
    Unit,
    asked::Benchmark,
    candidates::{Candidate, Candidates, PolicyArgs, Values, under},
    cgroup_fixture::CgroupFixture,
    guest::Clock,
    load,
    record::pipes_with,
};
use crate::{
    progress::Progress,
    request::Measurement,
    session::{Held, Plan},
};

/// Where the two processes are.
const PLACES: [(&str, &str); 2] = [("one_cpu", "0,0"), ("two_cpus_across", "0,1")];

/// Who is measured, and who is there besides.
const MEASURED: &str = "wfq";
const OTHERS: [&str; 2] = ["fifo", "cfs"];

/// A variant that is compared with the policy alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// The kernel's own scheduler, for comparison.
    Own,
    /// The kernel's own scheduler with groups that have limits.
    OwnLimited,
    Alone,
    /// Two others are loaded, and each has a task that sleeps.
    OfThree,
    /// State transitions are not checked.
    Unchecked,
    /// Each side of the pipe is in a control group of its own, of a hundred.
    Grouped,
    /// And each of them has a limit, which none comes to.
    Limited,
}

const VARIANTS: [(&str, Variant); 7] = [
    (DEFAULT, Variant::Own),
    ("default, 100 groups with limits", Variant::OwnLimited),
    ("wfq", Variant::Alone),
    ("wfq, of three", Variant::OfThree),
    ("wfq, checks off", Variant::Unchecked),
    (GROUPED, Variant::Grouped),
    (LIMITED, Variant::Limited),
];

/// The rows that are compared where there are groups.
const GROUPED: &str = "wfq, 100 groups";
const LIMITED: &str = "wfq, 100 groups with limits";

/// More than the load can use, so that it is accounted for and no task waits for it.
const LIMIT: &str = "190000 100000";

/// What must be reached: limit, variant, place, reference.
const LIMITS: &[(Limit, &str, &str, &str)] = &[
    (Limit { name: "one CPU: three policies loaded ÷ one", at_most: 1.03 }, "wfq, of three", "one_cpu", "wfq"),
    (Limit { name: "across: three policies loaded ÷ one", at_most: 1.03 }, "wfq, of three", "two_cpus_across", "wfq"),
    (Limit { name: "one CPU: state checks on ÷ off", at_most: 1.03 }, "wfq", "one_cpu", "wfq, checks off"),
    (Limit { name: "across: state checks on ÷ off", at_most: 1.03 }, "wfq", "two_cpus_across", "wfq, checks off"),
    (Limit { name: "one CPU: 100 groups with limits ÷ no groups", at_most: 1.05 }, LIMITED, "one_cpu", MEASURED),
    (Limit { name: "across: 100 groups with limits ÷ no groups", at_most: 1.05 }, LIMITED, "two_cpus_across", MEASURED),
    (Limit { name: "one CPU: 100 groups with limits ÷ without", at_most: 1.05 }, LIMITED, "one_cpu", GROUPED),
    (Limit { name: "across: 100 groups with limits ÷ without", at_most: 1.05 }, LIMITED, "two_cpus_across", GROUPED),
];

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Examples:
  ekiden bench policies --vm --check
      instructions, in a virtual machine of its own; exits with 116 if a limit
      is missed
  ekiden bench policies --vm --json   one JSON object
  sudo ekiden bench policies          nanoseconds, in the kernel of this machine
WFQ has the pipe, without the flight recorder; FIFO and CFS are loaded beside
it, and each has a task that sleeps. The control groups are made directly in the
root. They are compared with no groups, and with the same groups without limits;
what the kernel itself has to do for tasks in groups is in the first of these,
and shows under its own scheduler, by itself.")]
pub(crate) struct PoliciesBench {
    #[command(flatten)]
    source: PolicyArgs,
    /// How often each variant gets its turn; one more turn comes before and does not count
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Round trips that are timed each time
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..))]
    round_trips: u64,
}

impl Benchmark for PoliciesBench {
    const NAME: &'static str = "policies";
    const CLOCK: Clock = Clock::Exact;

    fn candidates(&self) -> Candidates {
        let policies: Vec<String> = [MEASURED].into_iter().chain(OTHERS).map(str::to_owned).collect();
        Candidates::new(&policies, &self.source)
    }
}

impl Measurement for PoliciesBench {
    type Figures = Comparison;

    fn measure(&self, unit: Unit) -> Result<Comparison> {
        let mut progress = Progress::new();
        let (_, modules) = self.candidates().prepare(&mut progress)?;
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let mut measurements = Measurements::default();
        for turn in 0..=self.repeat {
            for (name, variant) in VARIANTS {
                progress.step(format!("turn {turn} of {}: {name}", self.repeat));
                // Calls are written down in neither.
                let plan = Plan { flight_kib: 0, ..Plan::new(MEASURED, &modules) };
                let time = || self.time(variant, &modules);
                let (values, stayed) = match variant {
                    Variant::Own | Variant::OwnLimited => Candidate::Default.run(&modules, time)?,
                    _ => under(&plan, time)?,
                };
                measurements.was_still_scheduler(name, stayed);
                // The first turn warms caches of all kinds.
                for (place, value) in values.into_iter().flatten().filter(|_| turn > 0) {
                    measurements.add(name, place, value);
                }
            }
        }
        let unit = format!("{} per pipe round trip", unit.name());
        Ok(Comparison::new("policies", &unit, &load::kernel_release()?, &measurements, LIMITS))
    }
}

impl PoliciesBench {
    fn time(&self, variant: Variant, modules: &Path) -> Result<Values> {
        if variant == Variant::Unchecked {
            let status = Status::read()?.unwrap_or_default();
            Control::open()?.check(status.find(Some(MEASURED))?.slot, Checks::Off)?;
        }
        let mut others = Vec::new();
        for policy in OTHERS.into_iter().filter(|_| variant == Variant::OfThree) {
            others.push(Other::start(policy, modules)?);
        }
        let fixture = match variant {
            Variant::Grouped => Some(CgroupFixture::new(None)?),
            Variant::Limited | Variant::OwnLimited => Some(CgroupFixture::new(Some(LIMIT))?),
            _ => None,
        };
        let options = fixture.as_ref().map_or(Vec::new(), |fixture| vec!["--cgroups".to_owned(), fixture.two()]);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let candidate = match variant {
            Variant::Own | Variant::OwnLimited => Candidate::Default,
            _ => Candidate::Policy(MEASURED.to_owned()),
        };
        let values = pipes_with(&candidate, self.round_trips, &PLACES, &options)?;
        others.iter().try_for_each(|other| other.held.check())?;
        Ok(values)
    }
}

/// Another policy, with a task that sleeps.
struct Other {
    sleeper: Child,
    held: Held,
}

impl Other {
    fn start(policy: &str, modules: &Path) -> Result<Self> {
        let held = Plan { flight_kib: 0, beside: Beside::Others, ..Plan::new(policy, modules) }.start()?;
        // It sleeps until its input ends.
        let sleeper = Command::new("cat").stdin(Stdio::piped()).spawn().context("cannot run cat")?;
        choose(&Who::Process(sleeper.id() as i32), Some(held.slot()), Inherit::Yes)?;
        Ok(Self { sleeper, held })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.sleeper.stdin.take());
        let _ = self.sleeper.wait();
    }
}
