//! Every fault that is to be contained, one after the other: beside another policy, and of one that is alone. Says for each
//! whether it was, how long any task had to stand still, and what was reported.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ekiden::Call;
use ekiden_guest_test::Part;
use ekiden_loader::{
    Beside, ChooseOptions, Config, Control, Counts, Hint, Inherit, LoadError, PolicyStatus, Program, Session, Status,
    Who, choose, sysfs,
};
use ekiden_test_policies::{ARM, Fault};
use nix::{
    errno::Errno,
    kmod::{DeleteModuleFlags, delete_module},
};
use serde::Serialize;

use crate::{
    bound::Bound,
    guest_tests,
    latency_probe::{Gap, LatencyProbe},
    load::{memory_bytes, pause},
    planted::{End, PLANTED, Planted},
};

/// What another program does; and first nothing at all, as tasks have to wait for each other and for the machine in any case.
const OTHERS: &[(&str, Run)] = &[
    ("nothing, without the policy", GuestTest::nothing),
    ("nothing", GuestTest::nothing_wrong),
    ("hint flood", GuestTest::hint_flood),
    ("panic in check_task_params", GuestTest::bad_check),
    ("loader killed", GuestTest::loader_killed),
    ("module removed by force", GuestTest::removed_by_force),
    ("out of memory while loading", GuestTest::out_of_memory),
];

/// The policy that it must not hurt.
pub(crate) const HOST: &str = "wfq";
/// How long tasks may wait before their policy is taken out, here. CPUs that share a processor are away for hundreds of milliseconds.
pub(crate) const STARVED_AFTER_MS: u64 = 1000;
/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Report {
    fault: &'static str,
    beside: bool,
    round: u32,
    cpus: usize,
    contained: bool,
    /// The longest that any task stood still from before the fault until all ran again.
    gap_ms: f64,
    /// What that one does: spins, rests, is woken up.
    who: &'static str,
    /// When it was over, in the kernel's milliseconds.
    until_ms: f64,
    /// For so long a CPU itself stood still, so that not even real-time tasks ran.
    cpu_ms: f64,
    /// From when the fault was known until every task had run.
    after_ms: f64,
    reported: String,
}

type Run = fn(&mut GuestTest) -> Result<Outcome>;

/// How long tasks stood still, and CPUs; and how long it took in the end until each task had run.
struct Waits {
    gap: Gap,
    cpu: Gap,
    after_ms: f64,
}

/// The outcome of a fault.
struct Outcome {
    waits: Waits,
    reported: String,
}

struct GuestTest {
    modules: PathBuf,
    cpus: usize,
    round: u32,
    probe: LatencyProbe,
    /// The policy beside which it happens; none if it happens to one that is alone.
    host: Option<Session>,
    /// What the kernel has accepted of either once.
    program: Option<Program>,
    host_program: Option<Program>,
}

/// Goes through the list.
pub(crate) fn list(modules: &Path, rounds: u32, only: &[String], beside: Option<bool>, part: Part) -> Result<()> {
    let cpus = thread::available_parallelism()?.get();
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|only| name.contains(only.as_str()));
    let probe = LatencyProbe::start(cpus)?;
    let modules = modules.to_owned();
    let mut test = GuestTest { modules, cpus, round: 0, probe, host: None, program: None, host_program: None };
    for round in 0..rounds {
        test.round = round;
        for beside in beside.map_or(vec![true, false], |beside| vec![beside]) {
            test.host_anew(beside)?;
            let mut is_of_part = part.each();
            for planted in PLANTED.iter().filter(|planted| is_wanted(planted.name) && planted.cpus_min <= cpus) {
                if is_of_part() {
                    test.one(planted.name, |test| test.planted(planted))?;
                }
            }
            for (name, run) in OTHERS.iter().filter(|(name, _)| is_wanted(name)) {
                if is_of_part() {
                    test.one(name, run)?;
                }
            }
        }
    }
    Ok(())
}

impl GuestTest {
    /// Has a fault happen, and reports. Only what makes it useless to go on is an error.
    fn one(&mut self, fault: &'static str, run: impl FnOnce(&mut Self) -> Result<Outcome>) -> Result<()> {
        let outcome = run(self).and_then(|outcome| self.all_is_well().map(|()| outcome));
        let contained = outcome.is_ok();
        let outcome = outcome
            .unwrap_or_else(|error| Outcome { waits: self.waits(0.0), reported: format!("NOT CONTAINED: {error:#}") });
        let Outcome { waits: Waits { gap, cpu, after_ms }, reported } = outcome;
        let (beside, round, cpus) = (self.host.is_some(), self.round, self.cpus);
        let report = Report {
            fault,
            beside,
            round,
            cpus,
            contained,
            gap_ms: gap.ms,
            who: gap.who,
            until_ms: gap.until_ms,
            cpu_ms: cpu.ms,
            after_ms,
            reported,
        };
        println!("{}", serde_json::to_string(&report)?);
        if !contained && beside && self.host.as_ref().is_none_or(|host| !host.is_running()) {
            self.host_anew(true)?;
        }
        Ok(())
    }

    /// Ends the other policy, and starts it again if there is to be one.
    fn host_anew(&mut self, beside: bool) -> Result<()> {
        if let Some(program) = self.host.take().and_then(Session::stop) {
            self.host_program = Some(program);
        }
        if beside {
            self.host = Some(Session::start_with(&config(&self.modules, HOST), &mut self.host_program)?);
        }
        Ok(())
    }

    /// Waits until every task has run, and says how long tasks waited until then. What comes after is not the point.
    fn all_run(&self) -> Result<Waits> {
        let after_ms = self.probe.all_run()?;
        Ok(self.waits(after_ms))
    }

    fn waits(&self, after_ms: f64) -> Waits {
        let (gap, cpu) = (self.probe.gap(), self.probe.cpu_gap());
        self.probe.end();
        Waits { gap, cpu, after_ms }
    }

    /// The other policy keeps running, or the kernel's own scheduler has everything, and every task runs.
    fn all_is_well(&self) -> Result<()> {
        match &self.host {
            Some(host) => host.check().context("the other policy is gone")?,
            None => wait("sched_ext holds on to the policy", || sysfs::state().as_deref() == Some("disabled"))?,
        }
        self.probe.all_run().map(drop)
    }

    fn faulty(&self, params: String) -> Config {
        let beside = if self.host.is_some() { Beside::OthersAsDefault } else { Beside::Nobody };
        Config { params, beside, ..config(&self.modules, "faulty") }
    }

    /// A policy that is about to go wrong, after a moment in which tasks have got used to it.
    fn start(&mut self, params: String) -> Result<Session> {
        let session = Session::start_with(&self.faulty(params), &mut self.program).context("it cannot be loaded")?;
        if let Some(host) = &self.host {
            choose(&Who::Thread(self.probe.of_others()), Some(host.slot()), Inherit::No)?;
        }
        self.probe.begin()?;
        session.check()?;
        Ok(session)
    }

    fn stop(&mut self, session: Session) {
        let program = session.stop();
        self.program = program.or(self.program.take());
    }

    /// Another number for each round, for each of the two ways to be loaded, for each number of CPUs, and for each of the list.
    fn turn(&self, planted: &Planted) -> usize {
        let place = PLANTED.iter().position(|other| other.name == planted.name).unwrap_or_default();
        2 * self.round as usize + usize::from(self.host.is_some()) + self.cpus.ilog2() as usize + place
    }

    fn planted(&mut self, planted: &Planted) -> Result<Outcome> {
        let call = planted.calls[self.turn(planted) % planted.calls.len()];
        let fault = planted.fault as u64;
        let session = self.start(format!("call={} fault={fault} after=0", call as u32))?;
        // The other policy has to live with it for this long.
        let bound = (planted.fault == Fault::Starve).then(|| Bound::of_ms(STARVED_AFTER_MS)).transpose()?;
        let (before, after) = (of(&session)?.counts, 1 + u64::from(self.round % 3));
        // It may go wrong in this very call.
        let armed = arm(&session, after);
        let outcome = self.ends(planted, call, &session, &before);
        drop(bound);
        self.stop(session);
        outcome.with_context(|| format!("in {}, armed: {:?}", call.name(), armed.map_err(|error| error.to_string())))
    }

    fn ends(&self, planted: &Planted, call: Call, session: &Session, before: &Counts) -> Result<Outcome> {
        let reported = match planted.end {
            End::TakenOut(words) => {
                let turns = Cell::new(before.turns);
                // New tasks set the timer, and a crowd is moved. A task whose fair share is as long a wait has a turn: then another one starves.
                let stirs = || match (planted.fault, call) {
                    (Fault::Starve, _) => {
                        let had = of(session).map_or(turns.get(), |status| status.counts.turns);
                        turns.replace(had) == had || arm(session, 1).is_ok()
                    }
                    (_, Call::Timer) => thread::spawn(|| ()).join().is_ok(),
                    (_, Call::MigrateTaskRq) => self.probe.crowd().is_ok(),
                    _ => true,
                };
                let found = wait("it was not found", || stirs() && !session.is_running());
                if found.is_err() && planted.fault == Fault::KickAll {
                    return self.is_held_back(session, before);
                }
                found.with_context(|| format!("the policy: {:?}", of(session).map(|status| status.counts)))?;
                let reported = match session.check() {
                    Err(LoadError::TakenOutOfSeveral(reported) | LoadError::TakenOut(reported)) => reported,
                    other => bail!("it is neither here nor gone: {other:?}"),
                };
                ensure!(words.iter().any(|word| reported.contains(word)), "the report is wrong: {reported}");
                ensure!(!reported.contains("another CPU panicked"), "the consequence hides the cause: {reported}");
                // Who runs out of memory is in the allocator, and who lets others starve is nowhere.
                let has_place = !matches!(
                    planted.fault,
                    Fault::Exhaust | Fault::Starve | Fault::KickAll | Fault::Livelock | Fault::Vain
                );
                ensure!(!has_place || reported.contains("faulty.rs:"), "the place is missing: {reported}");
                if self.host.is_some() {
                    let ago = of(session)?.faulted_ago();
                    ensure!(ago.is_some_and(|ago| ago < Duration::from_secs(5)), "it was taken out {ago:?} ago");
                }
                reported
            }
            End::ContractViolation(word) => {
                let count = before.contract_violations;
                let found = || of(session).is_ok_and(|status| status.counts.contract_violations > count);
                // There are new tasks, too.
                wait("it was not found", || thread::spawn(|| ()).join().is_ok() && found())?;
                let Counts { contract_violations, last_contract_violation, .. } = of(session)?.counts;
                if matches!(planted.fault, Fault::LoseToken | Fault::WrongCpu) {
                    ensure!(contract_violations == count + 1, "one counts as {}", contract_violations - count);
                }
                let reported = last_contract_violation.unwrap_or_default();
                ensure!(reported.contains(word), "the report is wrong: {reported}");
                format!("put right: {reported}")
            }
            End::Refused => {
                let found = || of(session).is_ok_and(|status| status.counts.refusals > before.refusals);
                wait("it was not found", || self.probe.crowd().is_ok() && found())?;
                let Counts { contract_violations, last_contract_violation: last, .. } = of(session)?.counts;
                // If the task moves once more first, its oldest token may be given back for the last.
                let is_of_it = last.as_ref().is_some_and(|text| text.contains("another task or CPU"));
                let is_right = contract_violations == before.contract_violations || is_of_it;
                ensure!(is_right, "another contract violation: {last:?}");
                "the old one was handed back".into()
            }
            End::Slowed => {
                let found = || of(session).is_ok_and(|status| status.counts.slowed > before.slowed + 1_000);
                wait("it was not found", || thread::spawn(|| ()).join().is_ok() && found())?;
                pause(1_000);
                format!("slowed down {} times", of(session)?.counts.slowed - before.slowed)
            }
            End::Stays => {
                pause(1_000);
                "nothing came of it".into()
            }
        };
        let mut waits = self.all_run()?;
        if planted.fault == Fault::Starve {
            // What waited for the whole bound is what was found.
            waits.gap.ms = waits.after_ms;
        }
        if !matches!(planted.end, End::TakenOut(_)) {
            session.check().context("the policy is gone")?;
        }
        Ok(Outcome { waits, reported })
    }

    /// A CPU that loses its processor again and again may have too many quiet milliseconds for a policy that asks for too much in the
    /// others to be taken out. Work beyond its budget is held back then, and all tasks run.
    fn is_held_back(&self, session: &Session, before: &Counts) -> Result<Outcome> {
        session.check()?;
        let slowed = of(session)?.counts.slowed - before.slowed;
        ensure!(slowed > 0, "it was neither found nor held back");
        Ok(Outcome { waits: self.all_run()?, reported: format!("held back {slowed} times") })
    }

    /// Nothing happens, and the policy that goes wrong is not even there.
    fn nothing(&mut self) -> Result<Outcome> {
        self.probe.begin()?;
        pause(100);
        Ok(Outcome { waits: self.all_run()?, reported: "nothing happened".into() })
    }

    /// The policy that goes wrong does not.
    fn nothing_wrong(&mut self) -> Result<Outcome> {
        let session = self.start("after=0".into())?;
        pause(100);
        let waits = self.all_run()?;
        session.check()?;
        self.stop(session);
        Ok(Outcome { waits, reported: "nothing happened".into() })
    }

    /// Everybody who may says something all the time.
    fn hint_flood(&mut self) -> Result<Outcome> {
        let session = self.start("after=0".into())?;
        let (slot, over) = (session.slot(), Arc::new(AtomicBool::new(false)));
        let flood = |_| {
            let over = over.clone();
            thread::spawn(move || -> Result<[u64; 2]> {
                let control = Control::open()?;
                let mut answers = [0; 2];
                // Every third is no hint at all.
                for number in 0_u64.. {
                    let bytes = number.to_ne_bytes();
                    let taken = control.hint(Some(slot), Hint::Now(&bytes[..if number % 3 == 2 { 5 } else { 8 }]))?;
                    answers[usize::from(taken)] += 1;
                    if over.load(Relaxed) {
                        break;
                    }
                }
                Ok(answers)
            })
        };
        let floods: Vec<_> = (0..=self.cpus).map(flood).collect();
        pause(100);
        let waits = self.all_run()?;
        over.store(true, Relaxed);
        let mut answers = [0; 2];
        for flood in floods {
            let some = flood.join().map_err(|_| anyhow!("a thread has panicked"))??;
            answers = [answers[0] + some[0], answers[1] + some[1]];
        }
        session.check()?;
        self.stop(session);
        let [refused, taken] = answers;
        ensure!(taken > 0 && refused > taken, "a third of the hints is good: {taken} taken, {refused} refused");
        Ok(Outcome { waits, reported: format!("{taken} hints taken, {refused} refused") })
    }

    /// A policy that panics over the parameters of a task refuses them; if it has a lock then, it ends.
    fn bad_check(&mut self) -> Result<Outcome> {
        let session = self.start("after=0".into())?;
        let (who, slot) = (Who::Thread(self.probe.of_others()), Some(session.slot()));
        let set = |params| {
            choose(&who, slot, ChooseOptions { inherit: Inherit::No, params }).map_err(|error| error.to_string())
        };
        let refused = |params, words: &str| match set(params) {
            Err(error) if error.contains(words) => Ok(error),
            other => Err(anyhow!("{params}: {other:?}")),
        };
        ensure!(set("rank=3").is_ok(), "rank 3 is refused");
        let reported = refused("rank=9", "planted in check_task_params")?;
        refused("rank=7", "no task has rank 7")?;
        ensure!(set("rank=3").is_ok(), "rank 3 is refused after a panic");
        session.check()?;
        refused("rank=8", "")?;
        wait("it was not found", || !session.is_running())?;
        match session.check() {
            Err(LoadError::TakenOutOfSeveral(why) | LoadError::TakenOut(why)) if why.contains("with a lock") => {}
            other => bail!("it is neither here nor gone: {other:?}"),
        }
        self.all_run()?;
        self.stop(session);
        // Another one has its memory to lose again.
        let session = self.start("after=0".into())?;
        for _ in 0..64 {
            refused("rank=9", "planted in check_task_params")?;
        }
        refused("rank=3", "is not asked any more")?;
        session.check()?;
        let waits = self.all_run()?;
        self.stop(session);
        Ok(Outcome { waits, reported: format!("refused: {reported}") })
    }

    /// Who loaded the policy dies without a word.
    fn loader_killed(&mut self) -> Result<Outcome> {
        let mut holder = Command::new(std::env::current_exe()?);
        holder.args(["hold", "--policy", "faulty", "--modules"]).arg(&self.modules);
        holder.args(self.host.is_some().then_some("--beside"));
        let mut holder = holder.spawn()?;
        let runs = || Ok::<_, LoadError>(Status::read()?.unwrap_or_default().find(Some("faulty"))?.alive);
        let is_there = || runs().unwrap_or(false) && sysfs::state().as_deref() == Some("enabled");
        let start = Instant::now();
        while !is_there() {
            // How long it takes depends on what the host leaves to this guest.
            ensure!(holder.try_wait()?.is_none(), "the program that starts the policy has ended");
            ensure!(start.elapsed() < Duration::from_secs(120), "the policy has not started after two minutes");
            pause(1);
        }
        self.probe.begin()?;
        holder.kill()?;
        holder.wait()?;
        wait("the policy goes on", || !is_there())?;
        Ok(Outcome { waits: self.all_run()?, reported: "the policy left with it".into() })
    }

    /// Where the kernel allows it, the module goes as soon as the policy does; it is refused otherwise.
    fn removed_by_force(&mut self) -> Result<Outcome> {
        let session = self.start("after=0".into())?;
        let force = || delete_module(c"ekiden_faulty", DeleteModuleFlags::O_NONBLOCK | DeleteModuleFlags::O_TRUNC);
        let forced = thread::spawn(force);
        // Other modules need this one.
        let core = delete_module(c"ekiden", DeleteModuleFlags::O_NONBLOCK | DeleteModuleFlags::O_TRUNC);
        ensure!(core == Err(Errno::EAGAIN), "ekiden.ko under a policy: {core:?}");
        pause(50);
        session.check()?;
        let waits = self.all_run()?;
        let refused = forced.is_finished();
        self.stop(session);
        let reported = match forced.join().map_err(|_| anyhow!("a thread has panicked"))? {
            Ok(()) if !refused => "the module went when the policy did".into(),
            Err(errno) if refused => format!("refused: {errno}"),
            other => bail!("the module was removed under the policy: {other:?}"),
        };
        Ok(Outcome { waits, reported })
    }

    /// An arena that does not fit, by little and by far.
    fn out_of_memory(&mut self) -> Result<Outcome> {
        self.probe.begin()?;
        let mut reported = String::new();
        for arena_bytes in [memory_bytes("MemTotal")? / 100 * 97, 2 << 30] {
            let config = Config { arena_bytes, ..self.faulty("after=0".into()) };
            match Session::start_with(&config, &mut self.program) {
                Err(error @ LoadError::NoMemory { .. }) => reported = error.to_string(),
                Err(other) => bail!("the report is wrong: {other}"),
                Ok(_) => bail!("an arena of {arena_bytes} bytes was made"),
            }
        }
        Ok(Outcome { waits: self.all_run()?, reported })
    }
}

/// With less memory than a machine in use would have: all of it is cleared at every start.
pub(crate) fn config(modules: &Path, policy: &str) -> Config {
    let usual = guest_tests::config(modules, policy);
    Config { max_tasks: 1 << 12, arena_bytes: 4 << 20, call_log_records: 1 << 10, ..usual }
}

fn of(session: &Session) -> Result<PolicyStatus> {
    let status = Status::read()?.unwrap_or_default();
    status.policies.into_iter().find(|policy| policy.slot == session.slot()).context("it is not in the list")
}

/// It goes wrong from the `after`-th call on that can.
fn arm(session: &Session, after: u64) -> Result<bool> {
    Ok(session.control().hint(Some(session.slot()), Hint::Now(&(ARM + after).to_ne_bytes()))?)
}

fn wait(otherwise: &str, done: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        ensure!(start.elapsed() < PATIENCE, "{otherwise}");
        pause(1);
    }
    Ok(())
}
