//! What a replay finds, and what it says of recordings that are not whole.

mod common;

use common::{record, rewritten};
use ekiden::prelude::*;
use ekiden_policies::{Cfs, Eevdf, Fifo, GlobalFifo, Wfq};
use ekiden_recording::{Entry, Header, Instance, Item, Record, RecordingReader, RecordingWriter};
use ekiden_replay::{Outcome, Replay, ReplayError};
use ekiden_sim::{Machine, Simulation, Successor};
use ekiden_test_policies::Faulty;
use ekiden_workload::{Workload, loads};

fn load() -> Workload {
    loads::make("hogs:count=6:ms=200+periodic:tasks=6:rounds=300", 4).unwrap()
}

fn recording<S: Scheduler>() -> Vec<u8> {
    record(Simulation::of::<S>(Machine::flat(4), ""), &load()).0
}

fn replay<S: Scheduler>(recording: &[u8]) -> Outcome {
    Replay::of::<S>().run(recording).unwrap()
}

#[test]
fn a_changed_constant_is_found_and_its_first_effect_is_shown() {
    let recording = recording::<Wfq>();
    let outcome = Replay::of::<Wfq>().with_params("slice_min_us=2999 period_us=100").run(&recording[..]).unwrap();
    let first = outcome.first.unwrap();
    let shown = first.to_string();
    assert!(outcome.differences > 0 && outcome.exact[0].to == first.call.number - 1, "{shown}");
    assert_eq!((first.before.len(), first.after.len()), (5, 5), "{shown}");
    assert_ne!(first.call.recorded.unwrap().slice_ns, first.replayed.unwrap().slice_ns);
    assert!(shown.contains("it answered differently") && shown.contains("slice 2999000 ns"), "{shown}");
    assert!(shown.contains("pick_next_task(cpu") && shown.contains("the last calls about its task:"), "{shown}");
}

#[test]
fn it_ends_at_the_first_difference_or_after_a_call_if_told_so() {
    let recording = recording::<Wfq>();
    let all = replay::<Wfq>(&recording);
    let replay = || Replay::of::<Wfq>().with_params("slice_min_us=2999 period_us=100");
    let outcome = replay().stop_on_difference().run(&recording[..]).unwrap();
    assert_eq!((outcome.differences, outcome.calls), (1, outcome.first.unwrap().call.number + 5));
    assert!(outcome.calls < all.calls);
    let outcome = Replay::of::<Wfq>().until(17).run(&recording[..]).unwrap();
    assert_eq!((outcome.calls, outcome.replayed, outcome.differences), (17, 17, 0));
}

#[test]
fn recordings_of_other_policies_or_with_other_parameters_are_refused() {
    let recording = recording::<Fifo>();
    let error = Replay::of::<Wfq>().run(&recording[..]).unwrap_err();
    assert!(matches!(&error, ReplayError::OtherPolicy { policy, .. } if policy == "fifo"), "{error}");
    let error = Replay::of::<Fifo>().with_params("colour=3").run(&recording[..]).unwrap_err();
    assert!(matches!(error, ReplayError::Params { .. }), "{error}");
}

/// Without this many records from one on.
fn without(recording: &[u8], from: usize, len: usize) -> Vec<u8> {
    rewritten(recording, |_, records| {
        let rest = records[from + len..].to_vec();
        vec![(0, 0, records[..from].to_vec()), (0, (from + len) as u64, rest)]
    })
}

/// From this many records of CPU 0 on, some are missing.
fn goes_on_after_a_gap<S: Scheduler>(params: &str, from: usize, at_least: f64) {
    let whole = record(Simulation::of::<S>(Machine::flat(4), params), &load()).0;
    let nr_calls = replay::<S>(&whole).calls;
    let outcome = Replay::of::<S>().agreeing(100).run(&without(&whole, from, 301)[..]).unwrap();
    let remarks = outcome.remarks.join("\n");
    assert!(outcome.lost >= 301 && outcome.calls < nr_calls, "{outcome:?}");
    assert!(remarks.contains("301 records of CPU 0 are missing before call"), "{remarks}");
    assert!(remarks.contains("a new instance was given the"), "{remarks}");
    assert_eq!(outcome.first.as_ref().map(ToString::to_string), None, "{}", S::NAME);
    let [first, later @ ..] = &outcome.exact[..] else { panic!("{}: {outcome:?}", S::NAME) };
    let exactly: u64 = later.iter().map(|exact| exact.calls).sum();
    assert!(first.from_beginning && later.iter().all(|exact| !exact.from_beginning), "{:?}", outcome.exact);
    let part = exactly as f64 / (outcome.calls - first.to) as f64;
    assert!(part > at_least, "{}: {part} after the gap: {:?}", S::NAME, outcome.exact);
}

#[test]
fn fifo_goes_on_after_a_gap() {
    goes_on_after_a_gap::<Fifo>("", 2_000, 0.95);
}

#[test]
fn a_global_fifo_goes_on_after_a_gap() {
    goes_on_after_a_gap::<GlobalFifo>("", 100, 0.0);
}

/// Without preemption on wake-up: whether a task may preempt rests on all that it has had, of which a part is missing for good.
#[test]
fn wfq_goes_on_after_a_gap() {
    goes_on_after_a_gap::<Wfq>("wakeup_us=1000000", 2_000, 0.5);
}

#[test]
fn cfs_goes_on_after_a_gap() {
    goes_on_after_a_gap::<Cfs>("", 2_000, 0.0);
}

#[test]
fn eevdf_goes_on_after_a_gap() {
    goes_on_after_a_gap::<Eevdf>("", 2_000, 0.0);
}

#[test]
fn a_recording_that_begins_in_the_middle_is_replayed_from_there() {
    let whole = recording::<Fifo>();
    let middle = rewritten(&whole, |_, records| vec![(0, 0, records[1_501..].to_vec())]);
    let outcome = Replay::of::<Fifo>().agreeing(100).run(&middle[..]).unwrap();
    assert!(!outcome.exact[0].from_beginning && outcome.exact[0].to == outcome.calls, "{outcome:?}");
    assert_eq!(outcome.differences, 0);
}

/// A ring that was written over begins anywhere, in the middle of a call too, and those of other CPUs may be whole.
#[test]
fn what_is_missing_before_the_first_call_has_no_time() {
    let late = rewritten(&recording::<Wfq>(), |_, records| vec![(0, 1_500, records[1_500..].to_vec())]);
    let outcome = replay::<Wfq>(&late);
    let times: Vec<u64> = RecordingReader::new(&late[..])
        .unwrap()
        .map(Result::unwrap)
        .filter(|recorded| matches!(recorded.item, Item::Entry(Entry::Call(_))))
        .map(|recorded| recorded.time_ns)
        .collect();
    assert_eq!(outcome.span_ns, times[times.len() - 1] - times[0]);
    assert!(outcome.remarks[0].starts_with("1500 records of CPU 0 are missing before call 1"), "{:?}", outcome.remarks);
    assert!(!outcome.remarks[0].contains(" ns"), "{:?}", outcome.remarks);
}

#[test]
fn the_mark_of_one_cpu_is_no_beginning_while_another_lacks_records() {
    let whole = recording::<Fifo>();
    let in_two = rewritten(&whole, |_, records| {
        let mut streams = [Vec::new(), Vec::new()];
        let mut nr_calls = 0;
        for record in records {
            let kind = record.0[0] & 0xff;
            nr_calls += usize::from(kind == 1);
            if kind == 4 {
                streams[1].push(record);
            }
            streams[nr_calls % 2].push(record);
        }
        let [torn, other] = streams;
        let middle = 1_500 + torn[1_500..].iter().position(|record| record.0[0] & 0xff == 3).unwrap();
        vec![(0, middle as u64, torn[middle..].to_vec()), (1, 0, other)]
    });
    let outcome = replay::<Fifo>(&in_two);
    assert!(outcome.lost > 1_500 && outcome.exact.iter().all(|exact| !exact.from_beginning), "{:?}", outcome.exact);
    assert_eq!((outcome.differences, outcome.first.is_some()), (0, false), "{outcome:?}");
}

/// The newest calls, of a ring that lacks some at its beginning if `from` is above 0, as they are written down afterwards: the header names the newest policy.
fn newest_calls(from: usize, known: &[(u64, &str)], before_marks: Option<&str>) -> Outcome {
    let simulation = Simulation::of::<Wfq>(Machine::flat(4), "slice_min_us=700")
        .upgrade(200_000_000, Successor::of::<Fifo>(""))
        .upgrade(300_000_000, Successor::of::<GlobalFifo>(""));
    let whole = record(simulation, &load()).0;
    let instance = |policy: &str| {
        let params = if policy == "wfq" { "slice_min_us=700" } else { "" };
        Instance { policy: policy.into(), params: params.into() }
    };
    let mut all = Vec::new();
    rewritten(&whole, |_, records| {
        all = records;
        Vec::new()
    });
    let reader = RecordingReader::new(&whole[..]).unwrap();
    let header = Header { instance: instance("global-fifo"), ..reader.header().clone() };
    let mut writer = RecordingWriter::new(Vec::new(), &header).unwrap();
    writer.block(0, from as u64, &all[from..]).unwrap();
    writer.before_marks(before_marks.map(instance).as_ref()).unwrap();
    known.iter().for_each(|(number, policy)| writer.instance(*number, &instance(policy)).unwrap());
    writer.pass(1 << 55).unwrap();
    let replay = Replay::of::<Fifo>().and::<Wfq>().and::<GlobalFifo>().agreeing(100);
    replay.run(&writer.finish().unwrap()[..]).unwrap()
}

#[test]
fn each_call_is_replayed_by_the_policy_that_had_it() {
    let all = [(1, "wfq"), (2, "fifo"), (3, "global-fifo")];
    let outcome = newest_calls(0, &all, None);
    assert!(outcome.is_exact() && outcome.exact_calls == outcome.calls, "{outcome:?}");
    let outcome = newest_calls(200, &all, Some("wfq"));
    assert_eq!((outcome.differences, outcome.first_not_exact.is_some()), (0, false), "{outcome:?}");
    assert!(outcome.replayed == outcome.calls && outcome.exact_calls > 300, "{outcome:?}");
    let by_another = newest_calls(200, &all, Some("global-fifo"));
    assert!(by_another.not_exact > outcome.not_exact + 100, "{by_another:?} {outcome:?}");
}

#[test]
fn calls_of_a_policy_that_is_not_known_are_not_replayed_and_are_no_differences() {
    let unknown = |outcome: &Outcome| {
        outcome.remarks.iter().filter(|remark| remark.contains("does not say of which policy they are")).count()
    };
    let whole = newest_calls(0, &[(1, "wfq"), (2, "fifo"), (3, "global-fifo")], None);
    for (from, known) in [
        (0, &[(2, "fifo"), (3, "global-fifo")][..]),
        (200, &[(2, "fifo"), (3, "global-fifo")]),
        (0, &[(1, "wfq"), (3, "global-fifo")]),
    ] {
        let outcome = newest_calls(from, known, None);
        assert_eq!((outcome.differences, outcome.not_exact, unknown(&outcome)), (0, 0, 1), "{outcome:?}");
        // What is known is exact from its beginning on.
        assert!(outcome.exact_calls == outcome.replayed && outcome.replayed > 300, "{outcome:?}");
        assert!(outcome.replayed < whole.calls - 100 && !outcome.is_exact(), "{outcome:?}");
    }
}

fn panics(params: &str) -> Outcome {
    let (recording, report) = record(Simulation::of::<Faulty>(Machine::flat(4), params), &load());
    assert!(report.fault.is_some());
    replay::<Faulty>(&recording)
}

#[test]
fn a_policy_that_was_taken_out_panics_again_in_the_same_call() {
    for params in ["call=3 after=40", "call=0 after=77", "call=6 fault=4 after=9", "call=2 after=3"] {
        let outcome = panics(params);
        assert_eq!(outcome.first.as_ref().map(ToString::to_string), None, "{params}");
        assert_eq!((outcome.differences, outcome.not_exact), (0, 0), "{params}: {outcome:?}");
        if params.contains("fault=4") {
            continue;
        }
        let remarks = outcome.remarks.join("\n");
        assert!(remarks.contains("panics as it did when it was recorded: planted in"), "{params}: {remarks}");
    }
}

/// First come, first served, as long as no task has run for too long.
struct Strict {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    ran_ns_max: u64,
}

#[policy]
impl Scheduler for Strict {
    const PARAMS: &'static [Param] = &[Param { name: "ran_ms_max", help: "how long", default: 10, min: 1, max: 1_000 }];

    fn new(env: &Env) -> Self {
        let ran_ns_max = env.param("ran_ms_max") * 1_000_000;
        Self { queues: PerCpu::new(env, |_| SpinLock::default()), ran_ns_max }
    }

    fn enqueue(&self, _: &Cx, task: &Task, token: Schedulable<Self>) {
        assert!(task.runtime_ns < self.ran_ns_max, "task {} has run for too long", task.pid);
        self.queues[token.cpu()].lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.queues[cpu].lock().pop_front()
    }
}

#[test]
fn a_panic_that_was_none_is_a_difference_and_so_is_none_that_was() {
    let of = |params| record(Simulation::of::<Strict>(Machine::flat(4), params), &load());
    let (recording, report) = of("ran_ms_max=1000");
    assert!(report.fault.is_none());
    let outcome = Replay::of::<Strict>().with_params("ran_ms_max=20").run(&recording[..]).unwrap();
    let first = outcome.first.unwrap().to_string();
    assert!(first.starts_with("the policy panicked: task 100") && first.contains("tests/findings.rs:"), "{first}");
    let (recording, report) = of("ran_ms_max=20");
    assert!(report.fault.is_some());
    let outcome = Replay::of::<Strict>().with_params("ran_ms_max=1000").run(&recording[..]).unwrap();
    let first = outcome.first.unwrap().to_string();
    assert!(first.starts_with("the policy was taken out here, and goes on in the replay"), "{first}");
    assert!(first.contains("and did not end"), "{first}");
}

#[test]
fn a_recording_that_breaks_off_is_replayed_up_to_there() {
    let whole = recording::<Wfq>();
    let outcome = replay::<Wfq>(&whole[..whole.len() - 10]);
    assert_eq!((outcome.differences, outcome.not_exact), (0, 0));
    assert!(outcome.remarks.iter().any(|remark| remark.contains("cut off at byte")), "{:?}", outcome.remarks);
    assert!(outcome.replayed > 500, "{outcome:?}");
}

#[test]
fn whatever_the_records_say_a_replay_survives_it() {
    let whole = recording::<Eevdf>();
    for seed in 1..=6 {
        let mut random = ekiden_workload::random::Random::new(seed);
        let damaged = rewritten(&whole, |_, mut records: Vec<Record>| {
            for _ in 0..50 {
                let at = random.next() as usize % records.len();
                records[at].0[random.next() as usize % 8] ^= 1 << (random.next() % 64);
            }
            vec![(0, 0, records)]
        });
        let outcome = replay::<Eevdf>(&damaged);
        assert!(outcome.calls > 500, "{outcome:?}");
    }
}
