//! `ekiden reproduce cos`: sections 4.2 to 4.4 of papers/004, how long it takes until a decision is carried out beside competing tasks, a worker
//! beside programs whose control group is limited, and requests to RocksDB, in a stock kernel.

mod delegation;
mod hosts;
mod judge;
mod rocksdb;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use ekiden_bench::{Judged, table};
use serde::{Deserialize, Serialize};

use self::{
    delegation::Point,
    hosts::Host,
    judge::{PERCENT, PROGRAMS, Worked},
};
use crate::{
    bench::{
        Output, Unit, Verdict,
        candidates::PolicyArgs,
        guest::{Clock, InVm},
        load,
    },
    failure::{Exit, Failure},
    progress::Progress,
    request::{Measurement, ask},
};

const MEMORY_MIB: u32 = 1_024;

/// Those that have limits: the kernel's own scheduler stands beside them.
const JUDGED: [Host; 2] = [Host::Agent, Host::Kernel];

/// What there is to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Part {
    /// Section 4.2: from a decision to the task's first instruction
    Delegation,
    /// Section 4.3: a worker beside 40 programs with a limit
    Judge,
    /// Section 4.4: requests to RocksDB
    Rocksdb,
}

impl Part {
    /// Whether it is measured if none is named: the last needs the library of RocksDB, which other commands do without.
    fn is_usual(self) -> bool {
        self != Self::Rocksdb
    }

    /// The policy, if none is named.
    fn usual_policy(self) -> &'static str {
        match self {
            Self::Delegation | Self::Judge => "wfq",
            Self::Rocksdb => "shinjuku",
        }
    }
}

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = "\
Each is measured under a policy in an agent, under the same policy in the kernel
and under the kernel's own scheduler, in one boot of a stock kernel.
Delegation: a thread sleeps and is woken up from another CPU, beside tasks that
never sleep. All tasks are the policy's; the thread stays on one CPU and has
nice -20, so that a policy that preempts decides for it at once. It is measured
from the call of pick_next_task that answers with it, which is recorded (in an
agent with --every-wakeup, as nothing is decided for a CPU that is idle), to its
first look at the clock in user space. The kernel's own scheduler tells of no
decisions: there, and besides under the others, from the wake-up. The limits are
for the most competing tasks divided by none: mean 1.1, longest 1.5.
Judge: a worker needs so much CPU time, alone, beside 40 programs in a control
group limited to 75 % of the machine, and beside them without the limit. The
limit is for its time with the limit divided by that alone: 1.15.
RocksDB: a thread on a CPU of its own sends requests at random times (Poisson),
whether or not those before have been answered; workers on all CPUs but two take
them, first come, first served. 99.5 % are GETs and 0.5 % range queries. Times
are from when a request was due to arrive until it was answered; each answer is
checked. There is no limit. It needs librocksdb-dev and libclang.
The guest's clock counts instructions, and its CPUs take turns: compare ratios,
not times.
Examples:
  ekiden reproduce cos --check
      exits with 116 if a limit is missed, with 101 if a policy was taken out
  ekiden reproduce cos delegation --cpus 2 --tasks 0,9 --times 200
  ekiden reproduce cos judge --runs 5 --json
  ekiden reproduce cos rocksdb --cpus 4 --loads 50,95 --ms 500
See also: ekiden agent; ekiden run")]
pub(crate) struct Cos {
    /// Only this; by default delegation and judge
    #[arg(value_name = "PART")]
    part: Option<Part>,
    /// The policy of the agent and of the kernel host; by default wfq, for RocksDB shinjuku
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// CPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=32))]
    cpus: u32,
    /// How many tasks compete, one number after another
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,5,6,7,8,9", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    tasks: Vec<u32>,
    /// How often the thread is woken up beside each number of tasks
    #[arg(long, value_name = "TIMES", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    times: u32,
    /// How often the worker works in each way
    #[arg(long, value_name = "TIMES", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// CPU time that the worker needs
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    cpu_ms: u64,
    #[command(flatten)]
    rocksdb: rocksdb::RocksDb,
    /// The guest's kernel: its release, or the beginning of one, as in 7.2.13; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    #[serde(skip)]
    kernel: Option<String>,
    #[command(flatten)]
    source: PolicyArgs,
    #[command(flatten)]
    #[serde(skip)]
    output: Output,
}

/// What was measured in the guest.
#[derive(Serialize, Deserialize)]
pub(crate) struct Measured {
    kernel: String,
    delegation: Vec<Point>,
    judge: Vec<Worked>,
    rocksdb: Vec<rocksdb::Point>,
    /// The hosts under which the policy was taken out.
    taken_out: Vec<Host>,
}

#[derive(Serialize)]
struct Report<'a> {
    policy: &'a str,
    cpus: u32,
    times: u32,
    runs: u32,
    cpu_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a rocksdb::RocksDb>,
    #[serde(flatten)]
    measured: Measured,
    limits: Vec<Judged>,
    passed: bool,
}

impl Measurement for Cos {
    type Figures = Measured;

    fn measure(&self, _unit: Unit) -> Result<Measured> {
        let mut progress = Progress::new();
        progress.step("waiting until the machine has settled");
        load::wait_until_quiet();
        let (mut delegation, mut judge, mut rocksdb, mut taken_out) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for host in Host::ALL.into_iter().filter(|_| self.has(Part::Delegation)) {
            progress.step(format!("delegation: {}", host.name(self.policy())));
            match delegation::measure(self, host)? {
                Some(points) => delegation.extend(points),
                None => taken_out.push(host),
            }
        }
        for host in Host::ALL.into_iter().filter(|_| self.has(Part::Judge)) {
            progress.step(format!("judge server: {}", host.name(self.policy())));
            match judge::measure(self, host)? {
                Some(worked) => judge.push(worked),
                None => taken_out.push(host),
            }
        }
        for host in Host::ALL.into_iter().filter(|_| self.has(Part::Rocksdb)) {
            progress.step(format!("RocksDB: {}", host.name(self.policy())));
            match rocksdb::measure(self, host)? {
                Some(points) => rocksdb.extend(points),
                None => taken_out.push(host),
            }
        }
        Ok(Measured { kernel: load::kernel_release()?, delegation, judge, rocksdb, taken_out })
    }
}

impl Cos {
    pub(super) fn run(&self) -> Result<ExitCode> {
        let mut programs = Vec::new();
        if self.has(Part::Rocksdb) {
            if self.cpus <= rocksdb::APART {
                let message = format!("--cpus {}: RocksDB takes {} at least", self.cpus, rocksdb::APART + 1);
                return Err(Failure::new(Exit::Usage, message).into());
            }
            programs.push(rocksdb::build(&mut Progress::new())?);
        }
        let machine = InVm::of(self.cpus, 1, MEMORY_MIB, self.kernel.clone(), programs);
        let policies = [self.policy().to_owned()];
        let measured = machine.with_guest(&self.source, &policies, Clock::Fair, |vm, _, unit, progress| {
            progress.step("measuring in the guest");
            ask(vm, self, unit, &mut |line| progress.note(line))
        })?;
        let report = self.report(measured);
        let verdict = Verdict::of_limits(&report.limits, report.measured.taken_out.is_empty());
        self.output.show(&report, &describe(&report), &verdict)
    }

    fn has(&self, part: Part) -> bool {
        self.part.map_or(part.is_usual(), |only| only == part)
    }

    fn policy(&self) -> &str {
        self.policy.as_deref().unwrap_or_else(|| self.part.unwrap_or(Part::Delegation).usual_policy())
    }

    fn report(&self, measured: Measured) -> Report<'_> {
        let mut limits = Vec::new();
        for host in JUDGED {
            if self.has(Part::Delegation) {
                limits.extend(delegation::judge(&measured.delegation, host).map(|judged| self.under(host, judged)));
            }
            if self.has(Part::Judge) {
                limits.push(self.under(host, judge::judge(&measured.judge, host)));
            }
        }
        let passed = measured.taken_out.is_empty() && limits.iter().all(|judged| judged.met);
        let Self { cpus, times, runs, cpu_ms, .. } = *self;
        let requests = self.has(Part::Rocksdb).then_some(&self.rocksdb);
        Report { policy: self.policy(), cpus, times, runs, cpu_ms, requests, measured, limits, passed }
    }

    fn under(&self, host: Host, judged: Judged) -> Judged {
        Judged { name: format!("{}: {}", host.name(self.policy()), judged.name), ..judged }
    }
}

fn describe(report: &Report<'_>) -> String {
    let Report { policy, cpus, times, runs, cpu_ms, requests, measured, limits, .. } = report;
    let mut text = format!(
        "Linux {} on {cpus} CPUs\nA us is a thousand instructions of an emulator: compare ratios, not times.\n",
        measured.kernel
    );
    if !measured.delegation.is_empty() {
        let heading = ["delegation, us", "tasks", "mean", "longest", "n", "from wake-up", "longest", "n"];
        text += &format!(
            "\nFrom the decision to the first instruction, {times} times; papers/004: 10 to 100 us, whatever competes\n{}\n",
            table(&heading, measured.delegation.iter().map(|point| delegation::cells(point, policy)))
        );
    }
    if !measured.judge.is_empty() {
        let heading = ["worker, ms", "alone", "limited", "longest", "÷ alone", "unlimited", "longest", "÷ alone"];
        text += &format!(
            "\n{cpu_ms} ms of CPU time beside {PROGRAMS} programs, limited to {PERCENT} % of the machine, means of {runs}; \
             papers/004: 4.29 s with a limit, and 12.40 s in ghOSt without\n{}\n",
            table(&heading, measured.judge.iter().map(|worked| judge::cells(worked, policy)))
        );
    }
    if let Some(requests) = requests {
        let points = &measured.rocksdb;
        text += &format!(
            "\n{}\n{}\n",
            requests.heading(*cpus),
            table(&rocksdb::HEADING, points.iter().map(|point| rocksdb::cells(point, points, policy)))
        );
        for rocksdb::Point { host, measured } in points.iter().filter(|point| point.measured.unanswered > 0) {
            let (host, load, count) = (host.name(policy), measured.load_percent, measured.unanswered);
            text += &format!("{host}, {load} %: {count} were not answered, and count with what they had waited\n");
        }
    }
    for host in &measured.taken_out {
        text += &format!("\nTAKEN OUT: {}\n", host.name(policy));
    }
    if !limits.is_empty() {
        text += &format!("\n{}", table(&["limit", "figure", "at most", ""], limits.iter().map(Judged::cells)));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use expect_test::expect;

    use super::{delegation::Spread, *};

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        cos: Cos,
    }

    fn cos(options: &[&str]) -> Cos {
        Options::parse_from([&["cos"], options].concat()).cos
    }

    /// What a guest could have said; the agent's last row and the kernel's own are given.
    fn measured(agent_with_nine_us: f64, agent_limited_ms: f64) -> Measured {
        let spread = |mean_us, longest_us| Some(Spread { mean_us, longest_us, n: 50 });
        let point = |host, tasks, decision, wakeup| Point { host, tasks, decision, wakeup };
        let worked = |host, limited_ms| Worked {
            host,
            alone_ms: vec![300.0],
            limited_ms: vec![limited_ms],
            unlimited_ms: vec![360.0],
        };
        Measured {
            kernel: "7.3.4".into(),
            delegation: vec![
                point(Host::Agent, 0, spread(20.0, 25.0), spread(36.0, 37.0)),
                point(Host::Agent, 9, spread(agent_with_nine_us, 37.0), spread(68.0, 136.0)),
                point(Host::Kernel, 0, spread(8.0, 9.0), spread(10.0, 11.0)),
                point(Host::Kernel, 9, spread(4.0, 5.0), spread(18.0, 84.0)),
                point(Host::Own, 9, None, spread(503.0, 1_164.0)),
            ],
            judge: vec![worked(Host::Agent, agent_limited_ms), worked(Host::Kernel, 315.0), worked(Host::Own, 500.0)],
            rocksdb: Vec::new(),
            taken_out: Vec::new(),
        }
    }

    #[test]
    fn each_host_has_its_rows_and_its_limits_and_the_kernels_own_has_none() {
        let cos = cos(&[]);
        expect![[r#"
            Linux 7.3.4 on 8 CPUs
            A us is a thousand instructions of an emulator: compare ratios, not times.

            From the decision to the first instruction, 50 times; papers/004: 10 to 100 us, whatever competes
            ────────────────────────────────────────────────────────────────────────────────
             delegation, us     tasks     mean   longest    n   from wake-up   longest    n
            ════════════════════════════════════════════════════════════════════════════════
             agent, wfq             0   20.000    25.000   50         36.000    37.000   50
             agent, wfq             9   24.000    37.000   50         68.000       136   50
             kernel host, wfq       0    8.000     9.000   50         10.000    11.000   50
             kernel host, wfq       9    4.000     5.000   50         18.000    84.000   50
             the kernel's own       9                                    503     1,164   50
            ────────────────────────────────────────────────────────────────────────────────

            300 ms of CPU time beside 40 programs, limited to 75 % of the machine, means of 20; papers/004: 4.29 s with a limit, and 12.40 s in ghOSt without
            ────────────────────────────────────────────────────────────────────────────────────────
             worker, ms         alone   limited   longest   ÷ alone   unlimited   longest   ÷ alone
            ════════════════════════════════════════════════════════════════════════════════════════
             agent, wfq           300       330       330     1.100         360       360     1.200
             kernel host, wfq     300       315       315     1.050         360       360     1.200
             the kernel's own     300       500       500     1.667         360       360     1.200
            ────────────────────────────────────────────────────────────────────────────────────────

            ────────────────────────────────────────────────────────────────────────────────────────────────
             limit                                                                figure   at most
            ════════════════════════════════════════════════════════════════════════════════════════════════
             agent, wfq: delegation, mean: most competing tasks ÷ none             1.200     1.100   MISSED
             agent, wfq: delegation, longest: most competing tasks ÷ none          1.480     1.500      met
             agent, wfq: judge server: worker with the limit ÷ alone               1.100     1.150      met
             kernel host, wfq: delegation, mean: most competing tasks ÷ none       0.500     1.100      met
             kernel host, wfq: delegation, longest: most competing tasks ÷ none    0.556     1.500      met
             kernel host, wfq: judge server: worker with the limit ÷ alone         1.050     1.150      met
            ────────────────────────────────────────────────────────────────────────────────────────────────"#]].assert_eq(&describe(&cos.report(measured(24.0, 330.0))));
    }

    #[test]
    fn one_missed_limit_fails_and_so_does_a_policy_that_was_taken_out() {
        let cos = cos(&[]);
        assert!(cos.report(measured(22.0, 345.0)).passed);
        assert!(!cos.report(measured(22.1, 345.0)).passed);
        assert!(!cos.report(measured(22.0, 345.1)).passed);
        let out = Measured { taken_out: vec![Host::Kernel], ..measured(22.0, 345.0) };
        let report = cos.report(out);
        assert!(!report.passed);
        assert!(describe(&report).contains("TAKEN OUT: kernel host, wfq"));
    }

    #[test]
    fn a_part_alone_has_its_own_limits_only() {
        let names = |part: &str| {
            let limits = cos(&[part]).report(measured(20.0, 300.0)).limits;
            limits.into_iter().map(|judged| judged.name).collect::<Vec<_>>()
        };
        assert_eq!(names("judge").len(), 2);
        assert!(names("delegation").iter().all(|name| name.contains("delegation")) && names("delegation").len() == 4);
        assert!(names("rocksdb").is_empty());
    }

    #[test]
    fn rocksdb_is_measured_if_it_is_asked_for_and_under_shinjuku() {
        let parts = |options: &[&str]| {
            let cos = cos(options);
            let has = [Part::Delegation, Part::Judge, Part::Rocksdb].map(|part| cos.has(part));
            (has, cos.policy().to_owned())
        };
        assert_eq!(parts(&[]), ([true, true, false], "wfq".to_owned()));
        assert_eq!(parts(&["rocksdb"]), ([false, false, true], "shinjuku".to_owned()));
        assert_eq!(parts(&["rocksdb", "--policy=fifo"]).1, "fifo");
        let error = cos(&["rocksdb", "--cpus=2"]).run().unwrap_err();
        assert_eq!(error.to_string(), "--cpus 2: RocksDB takes 3 at least");
    }

    #[test]
    fn what_taken_out_hosts_leave_of_rocksdb_is_shown_without_limits() {
        let cos = cos(&["rocksdb", "--cpus=4"]);
        let points = [(Host::Kernel, 800.0), (Host::Own, 1_600.0)];
        let points = points.map(|(host, longest_us)| rocksdb::Point::like(host, 50, longest_us));
        let measured = Measured {
            kernel: "7.3.4".into(),
            delegation: Vec::new(),
            judge: Vec::new(),
            rocksdb: points.into(),
            taken_out: vec![Host::Agent],
        };
        let report = cos.report(measured);
        assert!(!report.passed && report.limits.is_empty());
        expect![[r#"
            Linux 7.3.4 on 4 CPUs
            A us is a thousand instructions of an emulator: compare ratios, not times.

            Requests to RocksDB for 1000 ms, 100 workers on 2 CPUs, under the kernel's own one on each; papers/004: 9 CPUs, 10 to 250 thousand a second
            GETs take 32 us and 0.5 % range queries 80 ms, 8 times the papers'; in brackets: ÷ the kernel's own
            ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
             RocksDB, us             load   a second   answered         50 %         99 %       99.5 %       99.9 %      longest   GETs, 99 %       99.9 %
            ═══════════════════════════════════════════════════════════════════════════════════════════════════════════════════════════════════════════════
             kernel host, shinjuku   50 %      1,000        990   100 (0.50)   200 (0.50)   400 (0.50)   600 (0.50)   800 (0.50)   100 (0.50)   300 (0.50)
             the kernel's own        50 %      1,000        990          200          400          800        1,200        1,600          200          600
            ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────

            TAKEN OUT: agent, shinjuku
        "#]].assert_eq(&describe(&report));
    }
}
