//! One run: each CPU is a coroutine, and at each lock a CPU is chosen that continues.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use corosensei::{Coroutine, CoroutineResult, Yielder};
use ekiden_contain::contained;
use ekiden_host::observe::{Answer, Point, observe_locks};
use ekiden_lock::OfHost;
use serde::Serialize;

use crate::lock_order::PointOrder;
use crate::machine::Machine;
use crate::{Case, PolicyMaker};

/// How many choices a run may have before it is given up as one that never ends.
const CHOICES_MAX: usize = 100_000;

thread_local! {
    /// The yielder of the coroutine that runs; null outside.
    static CURRENT: Cell<*const Yielder<(), Point>> = const { Cell::new(std::ptr::null()) };
    static ORDER: RefCell<PointOrder> = RefCell::default();
}

/// Lets the others go on, if this is one of our coroutines.
fn reach(point: Point) -> Answer {
    let yielder = CURRENT.get();
    if !yielder.is_null() {
        ORDER.with_borrow_mut(|order| order.reach(point));
    }
    if let Point::Took(_) = point {
        return Answer::GoOn;
    }
    // A coroutine that unwinds is not switched away from: the count of panics belongs to the thread.
    if yielder.is_null() || std::thread::panicking() {
        return Answer::GoOn;
    }
    CURRENT.set(std::ptr::null());
    // SAFETY: only a coroutine sets the pointer, to its own yielder, which lives as long as it does. It is null
    // whenever another one or none runs: cleared above before every switch and at the coroutine's end.
    unsafe { &*yielder }.suspend(point);
    CURRENT.set(yielder);
    Answer::GoOn
}

/// The order in which calls continued: the CPU at each choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule(pub Vec<usize>);

/// Why a schedule is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no schedule at character {1}; give the CPUs in order, one digit each, as `ekiden explore` prints them"
)]
pub struct ScheduleError(String, usize);

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let digit = |(at, c): (usize, char)| {
            c.to_digit(10).map(|cpu| cpu as usize).ok_or_else(|| ScheduleError(text.to_owned(), at + 1))
        };
        text.chars().enumerate().map(digit).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|cpu| write!(f, "{cpu}"))
    }
}

impl Serialize for Schedule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding(pub String);

impl Finding {
    /// Whether this is the same kind of failure.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let kind = |finding: &Self| finding.0.split(':').next().map(str::to_owned);
        kind(self) == kind(other)
    }
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The choices that were made.
    pub schedule: Schedule,
    /// What went wrong, if anything.
    pub finding: Option<Finding>,
}

/// Runs `case` in the order of `schedule`. Where it says nothing, or names a CPU that cannot go on, the last one continues,
/// or else the first that can.
pub fn replay(case: &Case, policy: &PolicyMaker, schedule: &Schedule) -> Outcome {
    let mut choices = schedule.0.iter().copied();
    let mut last = 0;
    run(case, policy, |able| {
        let wanted = choices.next().filter(|cpu| able.contains(cpu));
        last = wanted.or(able.contains(&last).then_some(last)).unwrap_or(able[0]);
        last
    })
}

/// One run at a time in a program: policies share a few locks, and a run must not wait for what it cannot let go on.
static ONE: Mutex<()> = Mutex::new(());

/// A CPU with what it has to do.
struct Call {
    coroutine: Coroutine<(), Point, ()>,
    waits_for: Option<usize>,
    done: bool,
}

/// Runs `case`; `choose` says which of several CPUs continues.
pub(crate) fn run(case: &Case, policy: &PolicyMaker, mut choose: impl FnMut(&[usize]) -> usize) -> Outcome {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    observe_locks(reach);
    let mut schedule = Schedule::default();
    let finding = match contained(|| Rc::new(Machine::new(case, policy))) {
        Ok(machine) => orders(case, &machine, &mut choose, &mut schedule)
            .or_else(|| contained(|| machine.verdict()).unwrap_or_else(|panic| Some(format!("panic: {panic}"))))
            .or_else(|| ORDER.take().inversion()),
        Err(panic) => Some(format!("panic: {panic}")),
    };
    // SAFETY: this is the host, which hands the value to no policy.
    ekiden_host::forget_dropped(unsafe { OfHost::new() });
    Outcome { schedule, finding: finding.map(Finding) }
}

fn orders(
    case: &Case,
    machine: &Rc<Machine>,
    choose: &mut impl FnMut(&[usize]) -> usize,
    schedule: &mut Schedule,
) -> Option<String> {
    let call = |(cpu, steps): (usize, &&'static [crate::Step])| {
        let (machine, steps) = (machine.clone(), *steps);
        let coroutine = Coroutine::new(move |yielder: &Yielder<(), Point>, ()| {
            CURRENT.set(yielder);
            steps.iter().for_each(|step| machine.step(cpu as u32, *step));
            CURRENT.set(std::ptr::null());
        });
        Call { coroutine, waits_for: None, done: false }
    };
    ORDER.set(PointOrder::new(case.cpus.len()));
    let mut calls: Vec<_> = case.cpus.iter().enumerate().map(call).collect();
    while schedule.0.len() < CHOICES_MAX {
        let able: Vec<_> =
            (0..calls.len()).filter(|cpu| !calls[*cpu].done && calls[*cpu].waits_for.is_none()).collect();
        if able.is_empty() {
            let stuck: Vec<_> =
                (0..calls.len()).filter(|cpu| !calls[*cpu].done).map(|cpu| format!("CPU {cpu}")).collect();
            return (!stuck.is_empty()).then(|| format!("deadlock: {} wait for locks for ever", stuck.join(" and ")));
        }
        let cpu = choose(&able);
        schedule.0.push(cpu);
        ORDER.with_borrow_mut(|order| order.goes_on(cpu));
        let resumed = contained(|| calls[cpu].coroutine.resume(()));
        CURRENT.set(std::ptr::null());
        match resumed {
            Ok(CoroutineResult::Yield(Point::Wants(..) | Point::Tries(..) | Point::Took(_))) => {}
            Ok(CoroutineResult::Yield(Point::Waits(lock))) => calls[cpu].waits_for = Some(lock),
            Ok(CoroutineResult::Yield(Point::Released(lock))) => {
                calls.iter_mut().filter(|call| call.waits_for == Some(lock)).for_each(|call| call.waits_for = None);
            }
            Ok(CoroutineResult::Return(())) => calls[cpu].done = true,
            Err(panic) => return Some(format!("panic: {panic}")),
        }
    }
    Some(format!("endless: no end after {CHOICES_MAX} choices"))
}
