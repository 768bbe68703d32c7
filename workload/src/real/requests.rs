//! Requests that arrive at random times, whether or not those before them have been answered, and workers that answer them, first come, first
//! served (papers/004, section 4.4). Most are short, and a few very long.
//!
//! What a request takes is CPU time as the kernel counts it, for the reason that [`crate::real::threads`] has.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{hint, io, thread};

use serde::{Deserialize, Serialize};

use crate::random::Random;
use crate::real::exec::{Cpus, ExecError, system};
use crate::real::process_group::now_ns;
use crate::real::spin::keep_busy;
use crate::real::threads::own_cpu_ns;

/// Who sends requests sleeps until so many nanoseconds before the next is due, and then looks at the clock all the time.
const AWAKE_NS: u64 = 200_000;

/// How often it is looked whether all workers have begun.
const LOOK: Duration = Duration::from_millis(1);

/// Instructions between two hints, at which an emulator with one thread for all CPUs switches to the next CPU.
const INSTRUCTIONS_PER_HINT: u32 = 512;

/// Hints between two looks at the clock, at most.
const HINTS_PER_LOOK: u64 = 16;

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Requests that arrive, in percent of what the CPUs of the workers can answer if nothing else costs anything.
    pub load_percent: u32,
    /// For how long requests count, in nanoseconds.
    pub lasts_ns: u64,
    /// For how long they arrive before that, in nanoseconds.
    pub warm_up_ns: u64,
    /// CPU time of a short request, its answer included, in nanoseconds. An answer that takes longer is not cut short.
    pub short_ns: u64,
    /// CPU time of a long request, in nanoseconds.
    pub long_ns: u64,
    /// How many of a thousand are long.
    pub long_permille: u32,
    /// Who answers.
    pub workers: Workers,
    /// CPUs that no worker uses, counted from the first that this process may use, where requests are sent from.
    pub apart: u32,
    /// Threads that use all the CPU time that they can have, on any CPU.
    pub others: u32,
    /// What is left to chance.
    pub seed: u64,
}

/// How many workers there are, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// This many workers, each of them on any of the CPUs.
    Anywhere(u32),
    /// One worker on each CPU, which stays there.
    Bound,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it was due to arrive, by the monotonic clock.
    due_ns: u64,
    /// Whether it is one of the few.
    pub is_long: bool,
    /// Any number, to choose what is asked.
    pub number: u64,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    due_ns: u64,
    end_ns: u64,
    is_long: bool,
    /// CPU time without what it was filled up with.
    cpu_ns: u64,
    is_right: bool,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// As it was asked for.
    pub load_percent: u32,
    /// Requests a second that arrived.
    pub offered_per_s: f64,
    /// Answers a second while they did.
    pub served_per_s: f64,
    /// From when a request was due to arrive until it was answered.
    pub all: Option<Times>,
    /// Times of short requests alone.
    pub short: Option<Times>,
    /// Requests that count and were not answered in as much time again; they are in the times with what they had waited.
    pub unanswered: usize,
    /// Wrong answers, those included that do not count.
    pub wrong: usize,
    /// CPU time that an answer takes without what it is filled up with, on average, in microseconds.
    pub short_cpu_us: Option<f64>,
    /// The average for long requests, in microseconds.
    pub long_cpu_us: Option<f64>,
}

/// Percentiles of many times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many there were.
    pub n: usize,
    /// The median.
    pub p50_us: f64,
    /// 99 % are no longer.
    pub p99_us: f64,
    /// 99.5 % are no longer.
    pub p995_us: f64,
    /// 99.9 % are no longer.
    pub p999_us: f64,
    /// The longest.
    pub longest_us: f64,
}

impl Times {
    /// `None` if there is no time.
    pub fn of(mut ns: Vec<u64>) -> Option<Self> {
        ns.sort_unstable();
        let longest = *ns.last()?;
        // The first that so many of a thousand are no longer than.
        let at = |permille: usize| ns[(ns.len() * permille).div_ceil(1_000).saturating_sub(1)] as f64 / 1e3;
        Some(Self {
            n: ns.len(),
            p50_us: at(500),
            p99_us: at(990),
            p995_us: at(995),
            p999_us: at(999),
            longest_us: longest as f64 / 1e3,
        })
    }
}

impl Requests {
    /// Time between two requests, on average, in nanoseconds, if so many CPUs are the workers'.
    fn gap_ns(&self, cpus: u32) -> u64 {
        let (long, short) = (u64::from(self.long_permille), u64::from(1_000 - self.long_permille.min(1_000)));
        let of_thousand = self.long_ns * long + self.short_ns * short;
        (of_thousand / 10 / u64::from(cpus) / u64::from(self.load_percent)).max(1)
    }

    fn needed_ns(&self, request: &Request) -> u64 {
        if request.is_long { self.long_ns } else { self.short_ns }
    }
}

/// Requests that wait.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// Since no more requests come: when workers end in any case.
    until_ns: Option<u64>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, request: Request) {
        self.lock().requests.push_back(request);
        self.changed.notify_one();
    }

    fn close(&self, until_ns: u64) {
        self.lock().until_ns = Some(until_ns);
        self.changed.notify_all();
    }

    /// The one that came first; sleeps until there is one. `None` at the end.
    fn take(&self) -> Option<Request> {
        let mut waiting = self.lock();
        loop {
            if waiting.until_ns.is_some_and(|until_ns| now_ns() >= until_ns) {
                return None;
            }
            let first = waiting.requests.pop_front();
            if first.is_some() || waiting.until_ns.is_some() {
                return first;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Whether a load is over when it is dropped: threads that wait for that end however it goes.
struct Over<'a>(&'a AtomicBool, &'a Queue);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        self.1.close(0);
    }
}

/// Sends requests from the first CPU that this process may use; `answer` says whether the answer was right.
///
/// # Errors
/// If there is no CPU for workers, or threads cannot be started or kept on theirs.
pub fn run(load: &Requests, answer: impl Fn(&Request) -> bool + Sync) -> Result<Measured, ExecError> {
    let cpus = Cpus::usable()?;
    let (have, needed) = (cpus.count(), load.apart.max(1) + 1);
    if have < needed {
        return Err(ExecError::TooFewCpus { needed, have });
    }
    let on: Vec<u32> = (needed - 1..have).collect();
    let workers = match load.workers {
        Workers::Anywhere(count) => count as usize,
        Workers::Bound => on.len(),
    };
    let (queue, over, begun) = (Queue::default(), AtomicBool::new(false), AtomicU32::new(0));
    let (queue, over, begun, answer, cpus) = (&queue, &over, &begun, &answer, &cpus);
    let panicked = || system("answer requests")(io::Error::other("a thread panicked"));
    thread::scope(|scope| {
        let end = Over(over, queue);
        for number in 0..load.others {
            let other = thread::Builder::new().name(format!("other-{number}"));
            other.spawn_scoped(scope, || compete(over)).map_err(system("start a thread"))?;
        }
        let mut threads = Vec::new();
        for number in 0..workers {
            let mine = if load.workers == Workers::Bound { vec![on[number]] } else { on.clone() };
            let work = move || -> Result<Vec<Answer>, ExecError> {
                let confined = cpus.confine(Some(&mine)).map_err(|errno| system("stay on some CPUs")(errno.into()));
                begun.fetch_add(1, Release);
                confined.map(|()| work(load, queue, answer))
            };
            let worker = thread::Builder::new().name(format!("worker-{number}"));
            threads.push(worker.spawn_scoped(scope, work).map_err(system("start a thread"))?);
        }
        while (begun.load(Acquire) as usize) < workers {
            thread::sleep(LOOK);
        }
        cpus.confine(Some(&[0])).map_err(|errno| system("stay on a CPU")(errno.into()))?;
        let window = send(load, load.gap_ns(on.len() as u32), queue);
        cpus.confine(None).map_err(|errno| system("leave a CPU")(errno.into()))?;
        let mut answers = Vec::new();
        for worker in threads {
            answers.extend(worker.join().map_err(|_| panicked())??);
        }
        let left: Vec<Request> = queue.lock().requests.drain(..).collect();
        drop(end);
        Ok(measured(load, window, &answers, &left, now_ns()))
    })
}

/// From when until when requests were due that count.
type Window = std::ops::Range<u64>;

/// Sends all requests, and says that there will be no more.
fn send(load: &Requests, gap_ns: u64, queue: &Queue) -> Window {
    let mut random = Random::new(load.seed);
    let begin_ns = now_ns();
    let window = begin_ns + load.warm_up_ns..begin_ns + load.warm_up_ns + load.lasts_ns;
    let mut due_ns = begin_ns + random.exponential(gap_ns);
    while due_ns < window.end {
        let is_long = random.up_to(999) < u64::from(load.long_permille);
        let request = Request { due_ns, is_long, number: random.next() };
        wait_until(due_ns);
        queue.push(request);
        due_ns += random.exponential(gap_ns);
    }
    wait_until(window.end);
    queue.close(window.end + load.lasts_ns);
    window
}

fn wait_until(due_ns: u64) {
    loop {
        match due_ns.saturating_sub(now_ns()) {
            0 => return,
            left_ns if left_ns > AWAKE_NS => thread::sleep(Duration::from_nanos(left_ns - AWAKE_NS)),
            _ => idle_away(1),
        }
    }
}

fn compete(over: &AtomicBool) {
    while !over.load(Relaxed) {
        idle_away(1);
    }
}

fn work(load: &Requests, queue: &Queue, answer: &impl Fn(&Request) -> bool) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some(request) = queue.take() {
        let begin_ns = own_cpu_ns();
        let is_right = answer(&request);
        let cpu_ns = own_cpu_ns() - begin_ns;
        let until_ns = begin_ns + load.needed_ns(&request);
        loop {
            match until_ns.saturating_sub(own_cpu_ns()) {
                0 => break,
                left_ns => {
                    let hints = left_ns / (HINTS_PER_LOOK * u64::from(INSTRUCTIONS_PER_HINT));
                    idle_away(hints.clamp(1, HINTS_PER_LOOK));
                }
            }
        }
        let Request { due_ns, is_long, .. } = request;
        answers.push(Answer { due_ns, end_ns: now_ns(), is_long, cpu_ns, is_right });
    }
    answers
}

/// Keeps the CPU busy until so many hints have been given.
fn idle_away(hints: u64) {
    for _ in 0..hints {
        keep_busy(INSTRUCTIONS_PER_HINT);
        hint::spin_loop();
    }
}

fn measured(load: &Requests, window: Window, answers: &[Answer], left: &[Request], now_ns: u64) -> Measured {
    let seconds = load.lasts_ns as f64 / 1e9;
    let answered = answers.iter().filter(|answer| window.contains(&answer.due_ns));
    let unanswered: Vec<&Request> = left.iter().filter(|request| window.contains(&request.due_ns)).collect();
    let took = answered.map(|answer| (answer.end_ns - answer.due_ns, answer.is_long));
    let waited = unanswered.iter().map(|request| (now_ns - request.due_ns, request.is_long));
    let all: Vec<(u64, bool)> = took.chain(waited).collect();
    let served = answers.iter().filter(|answer| window.contains(&answer.end_ns)).count();
    let mean_us = |is_long: bool| {
        let ns: Vec<u64> = answers.iter().filter(|it| it.is_long == is_long).map(|it| it.cpu_ns).collect();
        (!ns.is_empty()).then(|| ns.iter().sum::<u64>() as f64 / ns.len() as f64 / 1e3)
    };
    Measured {
        load_percent: load.load_percent,
        offered_per_s: all.len() as f64 / seconds,
        served_per_s: served as f64 / seconds,
        all: Times::of(all.iter().map(|(ns, _)| *ns).collect()),
        short: Times::of(all.iter().filter(|(_, is_long)| !is_long).map(|(ns, _)| *ns).collect()),
        unanswered: unanswered.len(),
        wrong: answers.iter().filter(|answer| !answer.is_right).count(),
        short_cpu_us: mean_us(false),
        long_cpu_us: mean_us(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Requests {
        Requests {
            load_percent: 50,
            lasts_ns: 100_000_000,
            warm_up_ns: 10_000_000,
            short_ns: 20_000,
            long_ns: 1_000_000,
            long_permille: 100,
            workers: Workers::Anywhere(8),
            apart: 1,
            others: 0,
            seed: 1,
        }
    }

    #[test]
    fn percentiles_are_times_that_were_measured_and_the_longest_is_the_last() {
        let times = Times::of((1..=2_000).rev().map(|us| us * 1_000).collect()).unwrap();
        let Times { n, p50_us, p99_us, p995_us, p999_us, longest_us } = times;
        assert_eq!((n, p50_us, p99_us, p995_us, p999_us), (2_000, 1_000.0, 1_980.0, 1_990.0, 1_998.0));
        assert_eq!(longest_us, 2_000.0);
        let one = Times::of(vec![7_000]).unwrap();
        assert_eq!((one.p50_us, one.p999_us, one.longest_us), (7.0, 7.0, 7.0));
        assert_eq!(Times::of(Vec::new()), None);
    }

    #[test]
    fn the_load_is_a_part_of_what_the_workers_cpus_can_answer() {
        // As in the paper: 53.98 us on average.
        let load = Requests { short_ns: 4_000, long_ns: 10_000_000, long_permille: 5, load_percent: 100, ..load() };
        assert_eq!(load.gap_ns(1), 53_980);
        assert_eq!(load.gap_ns(9), 5_997);
        assert_eq!(Requests { load_percent: 50, ..load }.gap_ns(1), 107_960);
    }

    #[test]
    fn requests_that_were_not_answered_count_with_what_they_waited() {
        let answer = |due_ns, end_ns, is_right| Answer { due_ns, end_ns, is_long: false, cpu_ns: 3_000, is_right };
        let answers = [answer(900, 100_900, false), answer(1_000, 21_000, true), answer(2_000, 60_000_000, true)];
        let late = |due_ns| Request { due_ns, is_long: true, number: 0 };
        let load = load();
        let measured = measured(&load, 1_000..100_001_000, &answers, &[late(500), late(3_000)], 200_003_000);
        assert_eq!((measured.unanswered, measured.wrong, measured.all.unwrap().n), (1, 1, 3));
        assert_eq!(measured.all.unwrap().longest_us, 200_000.0);
        assert_eq!((measured.short.unwrap().n, measured.short.unwrap().longest_us), (2, 59_998.0));
        assert_eq!((measured.offered_per_s, measured.served_per_s), (30.0, 30.0));
        assert_eq!((measured.short_cpu_us, measured.long_cpu_us), (Some(3.0), None));
    }

    #[test]
    fn no_request_is_answered_in_less_than_its_cpu_time_and_wrong_answers_are_counted() {
        for workers in [Workers::Anywhere(8), Workers::Bound] {
            let load = Requests { load_percent: 20, workers, ..load() };
            let wrong = AtomicU32::new(0);
            let answer = |request: &Request| {
                let is_wrong = request.number % 2 == 0;
                wrong.fetch_add(is_wrong.into(), Relaxed);
                !is_wrong
            };
            let measured = run(&load, answer).unwrap();
            let (all, short) = (measured.all.unwrap(), measured.short.unwrap());
            assert!(short.p50_us >= 20.0 && all.longest_us >= 1_000.0, "{measured:?}");
            assert!(all.n > 20 && all.n > short.n, "{measured:?}");
            assert!(measured.wrong > 0 && measured.wrong == wrong.into_inner() as usize, "{measured:?}");
        }
    }

    #[test]
    fn a_process_without_a_cpu_for_workers_is_told() {
        let load = Requests { apart: 5_000, ..load() };
        assert!(matches!(run(&load, |_| true), Err(ExecError::TooFewCpus { needed: 5_001, .. })));
    }
}
