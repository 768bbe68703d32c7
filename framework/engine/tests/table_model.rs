//! The entry of a task, at which several CPUs look and of which each may change the state: in every order that memory and CPUs
//! allow (loom). What the models hold: `set_state` and a successful `try_state` are Release and `state` is Acquire, so a CPU that sees a task
//! wait or run sees what was written of it before. That a state is exchanged, and not stored, gives a token to one CPU, and no number to two
//! tokens; and the serial number, which counts on from one task of an entry to the next, makes one that is stale differ. The generation
//! and what else is Relaxed may be as late as it likes.

extern crate alloc;

#[path = "../src/answers.rs"]
pub mod answers;
#[expect(dead_code, reason = "the engine uses the rest")]
#[path = "../src/state.rs"]
pub mod state;
#[expect(dead_code, reason = "the engine uses the rest")]
#[path = "../src/table.rs"]
pub mod table;
#[expect(dead_code, reason = "wakeups_model.rs is about it")]
#[path = "../src/wakeups.rs"]
pub mod wakeups;

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "model/groups.rs"]
mod groups;

#[path = "model/policy_slots.rs"]
mod policy_slots;

/// The part of it that answers of hosts need.
pub mod engine {
    /// It has no policies.
    pub struct Engine<P> {
        pub(crate) tasks: super::table::TaskTable,
        pub(crate) host: Box<dyn ekiden_host::Host>,
        _policy: P,
    }
}

#[path = "model/lock.rs"]
mod lock;

use answers::Answers;
use atomics::{AtomicU32, Ordering::Relaxed};
use ekiden::{CpuId, TaskId};
use ekiden_host::abi::RawToken;
use loom::{sync::Arc, thread};
use state::Phase;
use table::{TaskEntry, TaskTable, token};

const NAME: u64 = 7;
const WEIGHT: u32 = 88;

/// The steps of `enqueue`: the task waits for `cpu`. Its token, which a policy's lock would show to others.
fn waits(table: &TaskTable, task: TaskId, cpu: CpuId) -> RawToken {
    let entry = table.get(task).unwrap();
    entry.weight.store(WEIGHT, Relaxed);
    loop {
        let seen = entry.state();
        let state = seen.issue(Phase::Ready, cpu);
        if entry.try_state(seen, state) {
            return token(task, state);
        }
    }
}

/// The steps of `wait_again`: the task that was picked does not run after all. Its new token, unless the kernel put it on a queue meanwhile.
fn waits_again(table: &TaskTable, task: TaskId, cpu: CpuId) -> Option<RawToken> {
    let entry = table.get(task).unwrap();
    let seen = entry.state();
    let state = seen.issue(Phase::Ready, cpu);
    (seen.phase() == Phase::Running && entry.try_state(seen, state)).then(|| token(task, state))
}

/// The steps of `run`, when `cpu` picks with this token: what the kernel is to run, if it is good.
fn run(table: &TaskTable, raw: RawToken, cpu: CpuId) -> Option<u64> {
    run_in(table.get(raw.task)?, raw, cpu)
}

fn run_in(entry: &TaskEntry, raw: RawToken, cpu: CpuId) -> Option<u64> {
    let seen = entry.state();
    let is_good = seen.serial() == raw.serial && raw.cpu == cpu && seen.cpu() == cpu && seen.phase().is_waiting();
    let is_good = is_good && entry.try_state(seen, seen.in_phase(Phase::Running));
    is_good.then(|| entry.host_task.load(Relaxed))
}

/// The steps of `task_exit`: the task is no more, and its entry may have the next.
fn exit(table: &TaskTable, task: TaskId) {
    assert!(table.remove(task));
    table.free(task.slot);
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A scan over all tasks has no token and no lock: the state alone says what else is there.
#[test]
fn who_sees_a_task_that_waits_sees_what_was_written_of_it() {
    check(4, || {
        let table = Arc::new(TaskTable::new(1));
        let other = thread::spawn({
            let table = table.clone();
            move || {
                let task = table.insert(NAME, 5).unwrap();
                waits(&table, task, 0);
            }
        });
        for view in table.iter() {
            assert_eq!(view.pid, 5, "{:?}", view.state);
            assert!(view.weight == WEIGHT || view.state.phase() == Phase::New, "a task waits, and its weight is old");
        }
        other.join().unwrap();
    });
}

/// The policy on another CPU asks what runs here.
#[test]
fn who_sees_a_task_run_knows_its_weight() {
    check(4, || {
        let table = Arc::new(TaskTable::new(1));
        let task = table.insert(NAME, 5).unwrap();
        let raw = waits(&table, task, 0);
        let asks = thread::spawn({
            let answers = Answers(table.entries.clone());
            move || answers.weight_of_running(task, 0)
        });
        // A weight that changes while the task waits.
        table.get(task).unwrap().weight.store(2 * WEIGHT, Relaxed);
        assert_eq!(run(&table, raw, 0), Some(NAME));
        assert!(asks.join().unwrap().is_none_or(|weight| weight == 2 * WEIGHT), "an old weight");
    });
}

/// A wake-up is told before the task is on a queue, so another CPU may pick it and give it back while the kernel puts it there.
#[test]
fn a_task_that_is_given_back_while_it_is_put_on_a_queue_has_one_good_token() {
    check(3, || {
        let table = Arc::new(TaskTable::new(1));
        let task = table.insert(NAME, 5).unwrap();
        let raw = waits(&table, task, 0);
        let gives_back = thread::spawn({
            let table = table.clone();
            move || {
                let answers = Answers(table.entries.clone());
                answers.claim(raw, 1, |_, _| true).ok()?;
                run(&table, RawToken { cpu: 1, ..raw }, 1)?;
                waits_again(&table, task, 1)
            }
        });
        let on_queue = waits(&table, task, 0);
        let given_back = gives_back.join().unwrap();
        assert_ne!(given_back.map(|token| token.serial), Some(on_queue.serial), "two tokens of one number");
        let good =
            [Some(on_queue), given_back].into_iter().flatten().filter(|token| run(&table, *token, token.cpu).is_some());
        assert_eq!(good.count(), 1, "one of them is good");
    });
}

/// One CPU picks the task, one claims it for itself, and the kernel puts it on its queue anew.
#[test]
fn a_task_goes_to_one_cpu() {
    check(3, || {
        let table = Arc::new(TaskTable::new(1));
        let task = table.insert(NAME, 5).unwrap();
        let raw = waits(&table, task, 0);
        let picks = thread::spawn({
            let table = table.clone();
            move || run(&table, raw, 0)
        });
        let claims = thread::spawn({
            let table = table.clone();
            move || {
                let answers = Answers(table.entries.clone());
                answers.claim(raw, 1, |_, _| true).ok().map(|()| run(&table, RawToken { cpu: 1, ..raw }, 1))
            }
        });
        let (picked, claimed) = (picks.join().unwrap(), claims.join().unwrap());
        match claimed {
            Some(runs) => assert_eq!((picked, runs), (None, Some(NAME)), "it was claimed"),
            None => assert_eq!(picked, Some(NAME), "no CPU has it"),
        }
    });
}

/// The policy gives the token of a task that has died, whose entry the CPU has found before, while the next one comes to wait there.
/// (When a task dies its state is stored, and loom lets an exchange come after a store that it cannot come after: so the death comes first.)
#[test]
fn a_token_of_a_task_that_has_died_is_not_good_for_the_next_one_in_its_slot() {
    check(3, || {
        let shared = Arc::new((TaskTable::new(1), AtomicU32::new(0)));
        let (table, shown) = &*shared;
        let old = table.insert(NAME, 5).unwrap();
        let raw = waits(table, old, 0);
        exit(table, old);
        let late = thread::spawn({
            let shared = shared.clone();
            move || run_in(&shared.0.entries[0], raw, 0)
        });
        let picks = thread::spawn({
            let shared = shared.clone();
            move || {
                let (table, shown) = &*shared;
                let (task, _) = table.at(0)?;
                // Less than a policy's lock gives: the state has to do the rest.
                run(table, RawToken { task, cpu: 0, serial: shown.load(Relaxed) }, 0)
            }
        });
        let new = table.insert(NAME + 1, 6).unwrap();
        assert!(new.slot == old.slot && new != old);
        let good = waits(table, new, 0);
        shown.store(good.serial, Relaxed);
        assert_eq!(late.join().unwrap(), None, "a stale token is taken for a good one");
        let picked = picks.join().unwrap();
        assert!(picked.is_none_or(|name| name == NAME + 1), "the kernel is to run a task that is no more");
        assert_eq!(run(table, good, 0).or(picked), Some(NAME + 1));
    });
}
