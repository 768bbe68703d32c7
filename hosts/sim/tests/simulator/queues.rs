//! Queues of hints: what tasks write reaches the policy in order and soon, and what it says reaches them.

use std::sync::Mutex;

use ekiden::{Hints, NotTold, ProcessId, QueueId, prelude::*};
use ekiden_host::hints::Plain;
use ekiden_policies::Wfq;
use ekiden_sim::{Machine, SimReport, Simulation, What};
use ekiden_trace::{InQueue, QueueNote};
use ekiden_workload::{HintWord, Step, TaskSpec, Workload, checks::all_finished};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Hints that were heard, and when; a test looks at the queues of its own numbers.
static HEARD: Mutex<Vec<(QueueId, &str, u64, u32)>> = Mutex::new(Vec::new());

/// First come, first served, and what is said is answered with one more.
struct Echo {
    queue: SpinLock<FifoQueue<Self>>,
}

#[policy(HintQueues)]
impl Scheduler for Echo {
    fn new(_: &Env) -> Self {
        Self { queue: SpinLock::default() }
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        self.queue.lock().push_back(token);
        cx.kick_idle(task.id);
    }

    fn pick_next_task(&self, cx: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
        self.queue.lock().claim_first(cx)
    }
}

#[policy]
impl HintQueues for Echo {
    type Hint = [u32; 2];
    type Notice = u64;

    fn register_queue(&self, cx: &Cx, queue: QueueId, owner: ProcessId) {
        assert!(owner >= 1_000, "{owner} is the first thread of a program");
        HEARD.lock().unwrap().push((queue, "open", cx.now_ns(), 0));
    }

    fn enter_queue(&self, cx: &Cx, queue: QueueId, mut hints: Hints<'_, [u32; 2]>) {
        while let Some([number, pid]) = hints.pop() {
            HEARD.lock().unwrap().push((queue, "hint", cx.now_ns(), number));
            assert!(number < 1_000 || pid >= 1_000, "{pid} is the thread that said it");
            let told = cx.notify::<Self>(queue, &u64::from(number + 1));
            assert!(matches!(told, Ok(()) | Err(NotTold::Full)), "the program is there: {told:?}");
            assert_eq!(cx.notify::<Self>(queue + 100, &0), Err(NotTold::Closed));
        }
    }

    fn unregister_queue(&self, cx: &Cx, queue: QueueId) {
        assert_eq!(cx.notify::<Self>(queue, &0), Err(NotTold::Closed));
        HEARD.lock().unwrap().push((queue, "closed", cx.now_ns(), 0));
    }
}

fn hint(queue: u32, number: u32, ring: bool) -> Step {
    Step::WriteHint { queue, hint: vec![HintWord::Value(number), HintWord::OwnPid], ring }
}

/// One after the other, as tests of one program may run at once.
fn run(load: &Workload) -> (SimReport, Vec<(QueueId, &'static str, u64, u32)>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    HEARD.lock().unwrap().clear();
    let report = Simulation::of::<Echo>(Machine::flat(2), "").traced().run(load).unwrap();
    assert_eq!((report.fault.clone(), report.contract_violations), (None, 0));
    (report, std::mem::take(&mut HEARD.lock().unwrap()))
}

fn what(heard: &[(QueueId, &'static str, u64, u32)]) -> Vec<(QueueId, &'static str, u32)> {
    heard.iter().map(|(queue, what, _, number)| (*queue, *what, *number)).collect()
}

#[test]
fn a_hint_is_heard_when_its_task_next_sleeps() {
    let steps = vec![Step::Run { ns: 100 * US }, hint(0, 7, false), Step::Run { ns: 50 * US }, Step::Sleep { ns: MS }];
    let (report, heard) = run(&Workload::new("hint", 2, [TaskSpec::new("task", steps)]));
    assert_eq!(what(&heard), [(1, "open", 0), (1, "hint", 7), (1, "closed", 0)]);
    assert!((150 * US..200 * US).contains(&heard[1].2), "{heard:?}");
    let queues = report.trace.records().filter(|record| record.what == What::Queue);
    let notes = queues.map(|record| (record.pid, QueueNote::from_value(record.value).unwrap()));
    let note = |what, times| (1_000, QueueNote { queue: 1, what, times });
    let expected = [(InQueue::Opened, 0), (InQueue::Heard, 1), (InQueue::Told, 1), (InQueue::Closed, 0)];
    assert_eq!(notes.collect::<Vec<_>>(), expected.map(|(what, times)| note(what, times)));
}

#[test]
fn what_is_said_in_a_queue_stands_in_the_trace_where_its_program_is() {
    let steps = vec![Step::Run { ns: 100 * US }, hint(0, 7, false), Step::Sleep { ns: MS }];
    let (report, _) = run(&Workload::new("hint", 2, [TaskSpec::new("task", steps).on([1])]));
    let queues = report.trace.records().filter(|record| record.what == What::Queue);
    let cpus: Vec<u32> = queues.map(|record| record.cpu).collect();
    assert_eq!(cpus, [1; 4], "opened, heard, told, closed");
}

#[test]
fn a_hint_of_a_task_that_only_runs_is_heard_at_the_tick() {
    let steps = vec![hint(0, 7, false), Step::Run { ns: 40 * MS }];
    let (_, heard) = run(&Workload::new("hint", 2, [TaskSpec::new("task", steps)]));
    assert!(heard[1].1 == "hint" && heard[1].2 < 11 * MS, "{heard:?}");
}

#[test]
fn ringing_has_it_heard_at_once() {
    let steps = vec![Step::Run { ns: 100 * US }, hint(0, 7, true), Step::Run { ns: 900 * US }];
    let (_, heard) = run(&Workload::new("ring", 2, [TaskSpec::new("task", steps)]));
    assert!(heard[1].1 == "hint" && heard[1].2 < 150 * US, "{heard:?}");
}

#[test]
fn who_waits_for_a_notice_is_woken_up_with_it() {
    let talk = [hint(0, 1_000, true), Step::ReadNotice { queue: 0 }, Step::Mark];
    let (report, heard) = run(&Workload::new("talk", 2, [TaskSpec::new("task", vec![Step::repeat(20, talk)])]));
    assert_eq!(all_finished(&report.report), Ok(()));
    assert_eq!(heard.iter().filter(|(_, what, ..)| *what == "hint").count(), 20);
    assert_eq!(report.report.tasks[0].marks_ns.len(), 20);
}

#[test]
fn what_there_is_no_room_for_is_lost_and_not_waited_for() {
    let flood = Step::repeat(200, [hint(0, 1_000, false)]);
    let steps = vec![flood, Step::Sleep { ns: MS }, Step::repeat(64, [Step::ReadNotice { queue: 0 }])];
    let (report, heard) = run(&Workload::new("flood", 2, [TaskSpec::new("task", steps)]));
    assert_eq!(all_finished(&report.report), Ok(()));
    assert_eq!(heard.iter().filter(|(_, what, ..)| *what == "hint").count(), 64);
    let notes = report.trace.records().filter(|record| record.what == What::Queue);
    let full = notes.filter(|record| QueueNote::from_value(record.value).unwrap().what == InQueue::Full);
    assert_eq!(full.count(), 200 - 64);
}

#[test]
fn a_queue_closes_with_its_task_and_who_waits_goes_on() {
    // The child waits for what never comes.
    let reader = Step::fork([Step::ReadNotice { queue: 0 }, Step::ReadNotice { queue: 0 }, Step::Mark]);
    let steps = vec![hint(0, 1, true), reader, Step::Run { ns: MS }, hint(0, 2, false)];
    let other =
        TaskSpec::new("other", vec![Step::Sleep { ns: 100 * US }, hint(1, 5, true), Step::Sleep { ns: 5 * MS }]);
    let (report, heard) = run(&Workload::new("end", 2, [TaskSpec::new("task", steps), other]));
    assert_eq!(all_finished(&report.report), Ok(()));
    let of = |queue| what(&heard).into_iter().filter(move |heard| heard.0 == queue).collect::<Vec<_>>();
    assert_eq!(of(1), [(1, "open", 0), (1, "hint", 1), (1, "hint", 2), (1, "closed", 0)]);
    assert_eq!(of(2), [(2, "open", 0), (2, "hint", 5), (2, "closed", 0)]);
}

#[test]
fn a_policy_without_hints_is_not_disturbed() {
    let steps = vec![hint(0, 1, true), Step::Run { ns: MS }, hint(0, 2, false), Step::Sleep { ns: MS }];
    let load = Workload::new("deaf", 2, [TaskSpec::new("task", steps).copies(3)]);
    let report = Simulation::of::<Wfq>(Machine::flat(2), "").run(&load).unwrap();
    assert_eq!((all_finished(&report.report), report.fault, report.contract_violations), (Ok(()), None, 0));
    assert_eq!(<Wfq as HintQueues>::Notice::SHAPE.bytes, 0);
}
