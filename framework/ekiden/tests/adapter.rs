//! The adapter between messages and the trait: what goes into a call, what comes out of it, and what is refused.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ekiden::{
    Call, Calls, HintRefused, Hints, MAX_CPUS, NotTold, Plain, ProcessId, QueueId, SLICE_NS_MIN,
    host::{
        Adapter, Host, Policy,
        abi::{Kicks, Message, NO_CPU, RawParams, RawToken, Reply},
    },
    prelude::*,
};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// A host whose clock advances by one with each look at it.
#[derive(Default)]
struct TestHost {
    clock_ns: AtomicU64,
}

impl Host for TestHost {
    fn now_ns(&self) -> u64 {
        self.clock_ns.fetch_add(1, Ordering::Relaxed)
    }

    fn may_run(&self, task: TaskId, cpu: CpuId) -> bool {
        task == TASK && cpu == 1
    }

    fn allowed_cpus(&self, task: TaskId, cpus: &mut CpuMask) {
        cpus.set(task.slot);
    }

    fn idle_cpus(&self, cpus: &mut CpuMask) {
        cpus.extend([0, 2]);
    }

    /// Queue 5 takes what begins with a 1.
    fn notify(&self, queue: QueueId, notice: &[u8]) -> Result<(), NotTold> {
        match (queue, notice) {
            (5, [1, 0, 0, 0, 0xff, 0, 0, 0]) => Ok(()),
            (5, _) => Err(NotTold::Full),
            _ => Err(NotTold::Closed),
        }
    }
}

fn env<S: Scheduler>() -> Env {
    Env::new(Topology::flat(4), 16, S::PARAMS, "").unwrap()
}

fn adapter<S: Scheduler>() -> Adapter<S> {
    Adapter::new(&env::<S>(), Arc::new(TestHost::default()))
}

const TASK: TaskId = TaskId { slot: 5, generation: 2 };
const TOKEN: RawToken = RawToken { task: TASK, cpu: 3, serial: 9 };

/// A message with everything set that any call looks at.
fn message(call: Call) -> Message {
    Message {
        call: call as u32,
        cpu: 3,
        task: TASK,
        token_cpu: TOKEN.cpu,
        token_serial: TOKEN.serial,
        runtime_ns: 1_000,
        weight: 820,
        nice: 1,
        pid: 77,
        flags: RefusalReason::NotAllowed as u32,
        arg: 42 << 32 | 6,
    }
}

/// What a call answers that has nothing to say.
const EMPTY: Reply = Reply {
    token: RawToken::NONE,
    dropped: RawToken::NONE,
    task: TaskId::NONE,
    slice_ns: 0,
    timer_ns: 0,
    kicks: Kicks::NONE,
    cpu: NO_CPU,
    reserved: 0,
};

fn deliver(policy: &dyn Policy, message: &Message, payload: &[u8]) -> Reply {
    policy.deliver(message, payload)
}

fn call(policy: &dyn Policy, call: Call) -> Reply {
    deliver(policy, &message(call), &[])
}

/// A hint of one byte, of which most values are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, KnownLayout, Immutable, Plain)]
#[repr(u8)]
enum Mood {
    Batch = 1,
    Interactive = 2,
}

/// What a program is told.
#[derive(Clone, Copy, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable, Plain)]
#[repr(C)]
struct Told {
    cpu: u32,
    much: [u16; 2],
}

/// Writes down each call, keeps the tokens, and gives each kind of answer.
struct Recorder {
    log: SpinLock<Vec<String>>,
    tokens: SpinLock<FifoQueue<Self>>,
}

impl Recorder {
    fn note(&self, call: &str, what: impl std::fmt::Debug) {
        self.log.lock().push(format!("{call} {what:?}"));
    }

    fn take(&self, call: &str, task: &Task, token: Schedulable<Self>) {
        self.note(call, (task.pid, &token));
        self.tokens.lock().push_back(token);
    }

    fn logged(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock())
    }
}

#[policy(HintQueues, TaskSettings)]
impl Scheduler for Recorder {
    fn new(_: &Env) -> Self {
        Self { log: SpinLock::default(), tokens: SpinLock::default() }
    }

    fn enqueue(&self, _: &Cx<'_>, task: &Task, _: Schedulable<Self>) {
        unreachable!("each call that stands for it is implemented, and yet it was called for {task:?}");
    }

    fn pick_next_task(&self, _: &Cx<'_>, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.note("pick_next_task", cpu);
        self.tokens.lock().pop_front()
    }

    fn pnt_err(&self, _: &Cx<'_>, cpu: CpuId, task: &Task, reason: RefusalReason, token: Schedulable<Self>) {
        self.note("pnt_err", (cpu, task.pid, reason, &token));
        self.tokens.lock().push_back(token);
    }

    fn task_new(&self, _: &Cx<'_>, task: &Task, token: Schedulable<Self>) {
        self.take("task_new", task, token);
    }

    fn task_wakeup(&self, _: &Cx<'_>, task: &Task, token: Schedulable<Self>) {
        self.take("task_wakeup", task, token);
    }

    fn task_preempt(&self, _: &Cx<'_>, task: &Task, token: Schedulable<Self>) {
        self.take("task_preempt", task, token);
    }

    fn task_yield(&self, _: &Cx<'_>, task: &Task, token: Schedulable<Self>) {
        self.take("task_yield", task, token);
    }

    fn task_blocked(&self, cx: &Cx<'_>, task: &Task) {
        self.note("task_blocked", (cx.cpu(), task));
    }

    fn task_dead(&self, _: &Cx<'_>, task: TaskId) {
        self.note("task_dead", task);
    }

    fn task_departed(&self, _: &Cx<'_>, task: &Task) -> Option<Schedulable<Self>> {
        self.note("task_departed", task.pid);
        self.tokens.lock().remove(task.id)
    }

    fn task_tick(&self, _: &Cx<'_>, task: &Task) {
        self.note("task_tick", task.runtime_ns);
    }

    fn task_affinity_changed(&self, _: &Cx<'_>, task: &Task) {
        self.note("task_affinity_changed", task.id);
    }

    fn task_prio_changed(&self, _: &Cx<'_>, task: &Task) {
        self.note("task_prio_changed", (task.weight, task.nice));
    }

    fn select_task_rq(&self, _: &Cx<'_>, task: &Task, previous: CpuId, suggested: CpuId, flags: WakeFlags) -> CpuId {
        self.note("select_task_rq", (task.pid, previous, suggested, flags.is_fork(), flags.is_sync()));
        2
    }

    fn migrate_task_rq(&self, _: &Cx<'_>, task: &Task, new: Schedulable<Self>) -> Option<Schedulable<Self>> {
        let old = self.tokens.lock().remove(task.id);
        self.take("migrate_task_rq", task, new);
        old
    }

    fn balance(&self, _: &Cx<'_>, cpu: CpuId) -> Option<TaskId> {
        self.note("balance", cpu);
        self.tokens.lock().front().map(Schedulable::task)
    }

    fn balance_err(&self, _: &Cx<'_>, cpu: CpuId, task: TaskId, reason: RefusalReason) {
        self.note("balance_err", (cpu, task, reason));
    }

    fn enter_idle(&self, _: &Cx<'_>, cpu: CpuId) {
        self.note("enter_idle", cpu);
    }

    fn exit_idle(&self, _: &Cx<'_>, cpu: CpuId) {
        self.note("exit_idle", cpu);
    }

    fn cpu_online(&self, _: &Cx<'_>, cpu: CpuId) {
        self.note("cpu_online", cpu);
    }

    fn cpu_offline(&self, _: &Cx<'_>, cpu: CpuId) {
        self.note("cpu_offline", cpu);
    }

    fn timer(&self, _: &Cx<'_>, cpu: CpuId) {
        self.note("timer", cpu);
    }
}

#[policy]
impl HintQueues for Recorder {
    type Hint = Mood;
    type Notice = Told;

    fn register_queue(&self, _: &Cx<'_>, queue: QueueId, owner: ProcessId) {
        self.note("register_queue", (queue, owner));
    }

    fn enter_queue(&self, cx: &Cx<'_>, queue: QueueId, hints: Hints<'_, Mood>) {
        self.note("enter_queue", (queue, hints.collect::<Vec<_>>()));
        let told = [(5, 1), (5, 2), (6, 1)].map(|(queue, cpu)| cx.notify::<Self>(queue, &Told { cpu, much: [255, 0] }));
        assert_eq!(told, [Ok(()), Err(NotTold::Full), Err(NotTold::Closed)]);
    }

    fn unregister_queue(&self, _: &Cx<'_>, queue: QueueId) {
        self.note("unregister_queue", queue);
    }

    fn parse_hint(&self, _: &Cx<'_>, task: Option<&Task>, hint: Mood) -> Result<(), HintRefused> {
        self.note("parse_hint", (task.map(|task| task.pid), hint));
        if hint == Mood::Batch { Ok(()) } else { Err(HintRefused) }
    }
}

#[policy]
impl TaskSettings for Recorder {
    const TASK_PARAMS: &'static [Param] = &[
        Param { name: "soft_us", help: "when it should be done", default: 10, min: 1, max: 50 },
        Param { name: "hard_us", help: "when it must be done", default: 100, min: 1, max: 200 },
    ];

    fn check_task_params(params: &TaskParams) -> Result<(), &'static str> {
        if params.get("soft_us") <= params.get("hard_us") { Ok(()) } else { Err("soft comes after hard") }
    }

    fn task_params(&self, _: &Cx<'_>, task: &Task, params: &TaskParams) {
        self.note("task_params", (task.pid, params.get("soft_us"), params.get("hard_us")));
    }
}

/// What [`Recorder`] writes down for [`message`] of each call. The two calls of an upgrade replace the policy, and are
/// no messages into it.
fn expected(call: Call) -> Option<&'static str> {
    Some(match call {
        Call::PickNextTask => "pick_next_task 3",
        Call::PntErr => "pnt_err (3, 77, NotAllowed, the right to run task 5.2 on CPU 3)",
        Call::TaskNew => "task_new (77, the right to run task 5.2 on CPU 3)",
        Call::TaskWakeup => "task_wakeup (77, the right to run task 5.2 on CPU 3)",
        Call::TaskPreempt => "task_preempt (77, the right to run task 5.2 on CPU 3)",
        Call::TaskYield => "task_yield (77, the right to run task 5.2 on CPU 3)",
        Call::TaskBlocked => "task_blocked (3, Task { id: task 5.2, pid: 77, runtime_ns: 1000, weight: 820, nice: 1 })",
        Call::TaskDead => "task_dead task 5.2",
        Call::TaskDeparted => "task_departed 77",
        Call::TaskTick => "task_tick 1000",
        Call::TaskAffinityChanged => "task_affinity_changed task 5.2",
        Call::TaskPrioChanged => "task_prio_changed (820, 1)",
        Call::SelectTaskRq => "select_task_rq (77, 3, 6, true, false)",
        Call::MigrateTaskRq => "migrate_task_rq (77, the right to run task 5.2 on CPU 3)",
        Call::Balance => "balance 3",
        Call::BalanceErr => "balance_err (3, task 5.2, NotAllowed)",
        Call::RegisterQueue => "register_queue (6, 42)",
        Call::EnterQueue => "enter_queue (6, [Interactive])",
        Call::UnregisterQueue => "unregister_queue 6",
        Call::ParseHint => "parse_hint (Some(77), Interactive)",
        Call::ReregisterPrep | Call::ReregisterInit => return None,
        Call::EnterIdle => "enter_idle 3",
        Call::ExitIdle => "exit_idle 3",
        Call::CpuOnline => "cpu_online 3",
        Call::CpuOffline => "cpu_offline 3",
        Call::Timer => "timer 3",
        Call::TaskParams => "task_params (77, 5, 100)",
    })
}

#[test]
fn each_call_reaches_the_method_of_its_name_once_with_what_the_message_says() {
    let policy = adapter::<Recorder>();
    for call in Call::ALL {
        let params = policy.task_params("soft_us=5").unwrap();
        let payload = if call == Call::TaskParams { params.as_bytes() } else { &[Mood::Interactive as u8] };
        deliver(&policy, &message(call), payload);
        let expected: Vec<_> = expected(call).into_iter().collect();
        assert_eq!(policy.scheduler().logged(), expected, "{call:?}");
        assert!(expected.iter().all(|text| text.split(' ').next() == Some(call.name())));
    }
}

#[test]
fn a_number_that_is_no_call_reaches_nothing() {
    let policy = adapter::<Recorder>();
    let mut unknown = message(Call::Timer);
    unknown.call = Call::ALL.len() as u32;
    assert_eq!(deliver(&policy, &unknown, &[]), EMPTY);
    assert!(policy.scheduler().logged().is_empty());
}

#[test]
fn a_policy_says_which_calls_it_wants() {
    assert_eq!(adapter::<Recorder>().calls(), Recorder::CALLS);
    assert_ne!(Recorder::CALLS, Calls::ALL);
}

#[test]
fn calls_that_return_nothing_leave_an_empty_reply() {
    let policy = adapter::<Recorder>();
    // Nothing is queued, so those that return tokens have nothing to return either.
    for answered in Call::ALL.into_iter().filter(|call| *call != Call::SelectTaskRq) {
        if expected(answered).is_none_or(|text| !text.contains("right to run")) {
            assert_eq!(call(&policy, answered), EMPTY, "{answered:?}");
        }
    }
}

#[test]
fn a_token_comes_back_as_it_went_in() {
    let policy = adapter::<Recorder>();
    for (into, out_of) in [
        (Call::TaskNew, Call::PickNextTask),
        (Call::TaskWakeup, Call::PickNextTask),
        (Call::TaskPreempt, Call::PickNextTask),
        (Call::TaskYield, Call::TaskDeparted),
        (Call::PntErr, Call::TaskDeparted),
    ] {
        let replies = [into, out_of, out_of].map(|next| call(&policy, next));
        assert_eq!(replies.map(|reply| reply.token), [RawToken::NONE, TOKEN, RawToken::NONE], "{into:?}");
        assert_eq!(replies.map(|reply| reply.dropped), [RawToken::NONE; 3], "{into:?}");
    }
}

#[test]
fn a_migration_exchanges_tokens() {
    let policy = adapter::<Recorder>();
    call(&policy, Call::TaskWakeup);
    let new = RawToken { cpu: 1, serial: 10, ..TOKEN };
    let reply = deliver(&policy, &Message { cpu: 1, ..message(Call::MigrateTaskRq) }.with_token(new), &[]);
    assert_eq!(reply.token, TOKEN);
    assert_eq!(call(&policy, Call::PickNextTask).token, new);
}

#[test]
fn the_chosen_cpu_and_the_task_to_move_are_in_the_reply() {
    let policy = adapter::<Recorder>();
    assert_eq!(call(&policy, Call::SelectTaskRq).cpu, 2);
    assert_eq!(call(&policy, Call::Balance).task, TaskId::NONE);
    call(&policy, Call::TaskNew);
    assert_eq!(call(&policy, Call::Balance).task, TASK);
}

#[test]
fn a_hint_is_taken_or_refused() {
    let policy = adapter::<Recorder>();
    let taken = |payload: &[u8]| deliver(&policy, &message(Call::ParseHint), payload).cpu != NO_CPU;
    assert!(taken(&[Mood::Batch as u8]));
    assert!(!taken(&[Mood::Interactive as u8]), "the policy said no");
    assert_eq!(policy.scheduler().logged().len(), 2);
}

#[test]
fn bytes_that_are_no_hint_never_reach_the_policy() {
    let policy = adapter::<Recorder>();
    for payload in [&[][..], &[0], &[3], &[255], &[1, 1]] {
        let reply = deliver(&policy, &message(Call::ParseHint), payload);
        assert_eq!(reply.cpu, NO_CPU, "{payload:?}");
    }
    assert!(policy.scheduler().logged().is_empty());
}

#[test]
fn what_is_set_for_a_task_is_checked_first() {
    let policy = adapter::<Recorder>();
    let why = |settings: &str| policy.task_params(settings).unwrap_err();
    let known = "for a task there is soft_us (1 to 50), hard_us (1 to 200)";
    assert_eq!(why("soft_us=51"), format!("soft_us=51 is outside 1..=50; {known}"));
    assert_eq!(why("firm_us=5"), format!("the policy has no parameter \"firm_us\"; {known}"));
    assert_eq!(why("soft_us"), format!("\"soft_us\" is not of the form name=number; {known}"));
    assert_eq!(why("soft_us=20,hard_us=10"), "soft comes after hard");
    assert_eq!(policy.task_params("").unwrap().values, [10, 100, 0, 0]);
    assert!(policy.scheduler().logged().is_empty());
}

#[test]
fn parameters_for_what_another_policy_declares_do_not_arrive() {
    let policy = adapter::<Recorder>();
    let params = policy.task_params("").unwrap();
    let undeclared = RawParams { declared: params.declared + 1, ..params };
    for payload in [undeclared.as_bytes(), &params.as_bytes()[1..], &[]] {
        deliver(&policy, &message(Call::TaskParams), payload);
    }
    assert!(policy.scheduler().logged().is_empty());
    assert_eq!(policy.params_declared(), params.declared);
}

#[test]
fn a_hint_from_a_task_that_is_not_ours_has_no_task() {
    let policy = adapter::<Recorder>();
    let not_ours = Message { task: TaskId::NONE, ..message(Call::ParseHint) };
    deliver(&policy, &not_ours, &[Mood::Batch as u8]);
    assert_eq!(policy.scheduler().logged(), ["parse_hint (None, Batch)"]);
}

#[test]
fn queued_hints_come_in_order_without_those_that_are_none() {
    let policy = adapter::<Recorder>();
    deliver(&policy, &message(Call::EnterQueue), &[0, 1, 7, 2, 1, 9]);
    assert_eq!(policy.scheduler().logged(), ["enter_queue (6, [Batch, Interactive, Batch])"]);
}

#[test]
fn hints_that_are_none_are_counted_in_the_answer() {
    let policy = adapter::<Recorder>();
    let enter = Message { arg: 7, ..message(Call::EnterQueue) };
    assert_eq!(deliver(&policy, &enter, &[1, 9, 2, 0]).cpu, 2);
    assert_eq!(deliver(&policy, &enter, &[1, 2]).cpu, NO_CPU, "all of them are hints");
    assert_eq!(policy.scheduler().logged(), ["enter_queue (7, [Batch, Interactive])"; 2]);
}

#[test]
fn a_type_says_how_it_looks() {
    assert_eq!(Told::SHAPE.to_string(), "Told { cpu: u32, much: [u16; 2] }");
    assert_eq!(Mood::SHAPE.to_string(), "Mood { Batch = 1, Interactive = 2 }");
    assert_eq!((Told::SHAPE.bytes, Told::SHAPE.align, Mood::SHAPE.bytes), (8, 4, 1));
    assert_ne!(Told::SHAPE.fingerprint(), Mood::SHAPE.fingerprint());
}

/// Queues what is enqueued, and implements nothing that is not required, but for hints.
struct Minimal {
    tokens: SpinLock<FifoQueue<Self>>,
    hints: AtomicU64,
}

#[policy(HintQueues)]
impl Scheduler for Minimal {
    fn new(_: &Env) -> Self {
        Self { tokens: SpinLock::default(), hints: AtomicU64::new(0) }
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, token: Schedulable<Self>) {
        self.tokens.lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        self.tokens.lock().pop_front()
    }
}

#[policy]
impl HintQueues for Minimal {
    type Hint = u16;

    fn parse_hint(&self, _: &Cx<'_>, _: Option<&Task>, hint: u16) -> Result<(), HintRefused> {
        self.hints.fetch_add(hint.into(), Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn by_default_every_waiting_task_is_enqueued() {
    let policy = adapter::<Minimal>();
    for waiting in [Call::TaskNew, Call::TaskWakeup, Call::TaskPreempt, Call::TaskYield, Call::MigrateTaskRq] {
        assert_eq!(call(&policy, waiting).token, RawToken::NONE);
        assert_eq!(call(&policy, Call::PickNextTask).token, TOKEN, "{waiting:?}");
    }
}

#[test]
fn by_default_a_refused_token_is_enqueued_if_it_is_still_good_and_dropped_if_not() {
    let policy = adapter::<Minimal>();
    for (reason, is_good) in [
        (RefusalReason::WrongCpu, true),
        (RefusalReason::NotAllowed, true),
        (RefusalReason::Busy, true),
        (RefusalReason::Stale, false),
        (RefusalReason::Gone, false),
        (RefusalReason::NotReady, false),
    ] {
        let refused = deliver(&policy, &Message { flags: reason as u32, ..message(Call::PntErr) }, &[]);
        let picked = call(&policy, Call::PickNextTask).token;
        let expected = if is_good { (TOKEN, RawToken::NONE) } else { (RawToken::NONE, TOKEN) };
        assert_eq!((picked, refused.dropped), expected, "{reason:?}");
    }
}

#[test]
fn by_default_a_task_goes_where_the_host_suggests_and_nothing_is_balanced() {
    let policy = adapter::<Minimal>();
    call(&policy, Call::TaskNew);
    assert_eq!(call(&policy, Call::SelectTaskRq).cpu, 6);
    assert_eq!(call(&policy, Call::Balance).task, TaskId::NONE);
    assert_eq!(call(&policy, Call::TaskDeparted).token, RawToken::NONE);
}

#[test]
fn by_default_queued_hints_are_parsed_one_by_one() {
    let policy = adapter::<Minimal>();
    deliver(&policy, &message(Call::EnterQueue), &[1, 0, 10, 0, 100, 0, 7]);
    assert_eq!(policy.scheduler().hints.load(Ordering::Relaxed), 111, "the last byte is half a hint");
}

/// Queues every token, and loses them all at a tick.
struct Careless(SpinLock<FifoQueue<Self>>);

#[policy]
impl Scheduler for Careless {
    fn new(_: &Env) -> Self {
        Self(SpinLock::default())
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, token: Schedulable<Self>) {
        self.0.lock().push_back(token);
    }

    fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
        self.0.lock().pop_front()
    }

    fn task_tick(&self, _: &Cx<'_>, _: &Task) {
        while let Some(token) = self.0.lock().pop_front() {
            drop(token);
        }
    }
}

#[test]
fn a_dropped_token_is_reported_once_by_the_call_that_dropped_it() {
    let careless = adapter::<Careless>();
    assert_eq!(call(&careless, Call::TaskWakeup).dropped, RawToken::NONE);
    assert_eq!(call(&careless, Call::TaskTick).dropped, TOKEN);
    assert_eq!(call(&careless, Call::TaskTick).dropped, RawToken::NONE);
}

#[test]
fn each_of_several_dropped_tokens_is_reported_and_only_to_its_own_instance() {
    let (careless, other) = (adapter::<Careless>(), adapter::<Careless>());
    for serial in 1..=3 {
        let token = RawToken { serial, ..TOKEN };
        deliver(&careless, &message(Call::TaskNew).with_token(token), &[]);
    }
    let mut serials = Vec::new();
    for _ in 0..4 {
        serials.push(call(&careless, Call::TaskTick).dropped.serial);
        assert_eq!(call(&other, Call::TaskTick).dropped, RawToken::NONE);
    }
    serials.sort_unstable();
    assert_eq!(serials, [0, 1, 2, 3]);
}

/// Runs what the test gave it at each pick.
struct Scripted;

/// The scripts of [`Scripted`], by the CPU that picks. They are plain functions: a policy is made from its
/// environment alone.
type Script = fn(&Cx<'_>);
static SCRIPTS: SpinLock<BTreeMap<CpuId, Script>> = SpinLock::new(BTreeMap::new());

#[policy]
impl Scheduler for Scripted {
    fn new(_: &Env) -> Self {
        Self
    }

    fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

    fn pick_next_task(&self, cx: &Cx<'_>, cpu: CpuId) -> Option<Schedulable<Self>> {
        let script = SCRIPTS.lock()[&cpu];
        script(cx);
        None
    }
}

/// The reply to a pick that does what `script` says. Tests that run at the same time use different CPUs.
fn reply_to(cpu: CpuId, script: Script) -> Reply {
    SCRIPTS.lock().insert(cpu, script);
    deliver(&adapter::<Scripted>(), &Message { cpu, ..message(Call::PickNextTask) }, &[])
}

#[test]
fn a_slice_and_a_timer_are_in_the_reply() {
    let reply = reply_to(10, |cx| {
        cx.set_slice_ns(50_000);
        cx.arm_timer(100);
        cx.arm_timer(200);
    });
    assert_eq!((reply.slice_ns, reply.timer_ns), (50_000, 200));
}

#[test]
fn a_slice_is_as_long_as_the_shortest_or_left_to_the_host() {
    let slice_ns = |script| reply_to(17, script).slice_ns;
    assert_eq!(slice_ns(|cx| cx.set_slice_ns(1)), SLICE_NS_MIN);
    assert_eq!(slice_ns(|cx| cx.set_slice_ns(u64::MAX)), u64::MAX, "the engine says what is wrong with it");
    assert_eq!(slice_ns(|cx| cx.set_slice_ns(0)), 0);
}

#[test]
fn a_timer_of_no_time_is_still_one() {
    assert_eq!(reply_to(11, |cx| cx.arm_timer(0)).timer_ns, 1);
}

#[test]
fn cpus_to_look_again_are_in_the_reply_once_each() {
    let reply = reply_to(12, |cx| [3, 1, 3, 1].into_iter().for_each(|cpu| cx.resched(cpu)));
    assert_eq!(reply.kicks.iter().collect::<Vec<_>>(), [3, 1]);
    assert!(!reply.kicks.is_all());
}

#[test]
fn more_cpus_than_there_is_room_for_are_all() {
    let four = reply_to(13, |cx| [0, 1, 2, MAX_CPUS - 1].into_iter().for_each(|cpu| cx.resched(cpu)));
    assert_eq!(four.kicks.iter().collect::<Vec<_>>(), [0, 1, 2, MAX_CPUS - 1]);
    let five = reply_to(13, |cx| (0..5).for_each(|cpu| cx.resched(cpu)));
    assert!(five.kicks.is_all());
}

#[test]
fn effects_stand_next_to_what_the_call_returns() {
    struct Waker;

    #[policy]
    impl Scheduler for Waker {
        fn new(_: &Env) -> Self {
            Self
        }

        fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

        fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
            None
        }

        fn select_task_rq(&self, cx: &Cx<'_>, _: &Task, _: CpuId, _: CpuId, _: WakeFlags) -> CpuId {
            cx.resched(1);
            1
        }
    }

    let reply = call(&adapter::<Waker>(), Call::SelectTaskRq);
    assert_eq!((reply.cpu, reply.kicks.iter().collect::<Vec<_>>()), (1, vec![1]));
}

#[test]
fn the_clock_is_read_once_in_a_call_that_asks_and_never_in_one_that_does_not() {
    let host = Arc::new(TestHost::default());
    let policy = Adapter::<Scripted>::new(&env::<Scripted>(), host.clone());
    let pick = |script: Script| {
        SCRIPTS.lock().insert(14, script);
        deliver(&policy, &Message { cpu: 14, ..message(Call::PickNextTask) }, &[]).slice_ns
    };
    let reads = || host.clock_ns.load(Ordering::Relaxed);

    pick(|cx| cx.resched(1));
    assert_eq!(reads(), 0);
    let twice: Script = |cx| {
        assert_eq!(cx.now_ns(), cx.now_ns());
        cx.set_slice_ns(cx.now_ns() * SLICE_NS_MIN);
    };
    assert_eq!(pick(twice), 0);
    assert_eq!(pick(twice), SLICE_NS_MIN, "the next call has a time of its own");
    assert_eq!(reads(), 2);
}

#[test]
fn questions_reach_the_host() {
    reply_to(15, |cx| {
        assert_eq!(cx.cpu(), 15);
        assert!(cx.may_run(TASK, 1) && !cx.may_run(TASK, 2));
        assert_eq!(cx.allowed_cpus(TASK), CpuMask::single(TASK.slot));
        assert_eq!(cx.idle_cpus().iter().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(cx.topology().nr_cpus(), 4);
    });
}

#[test]
fn a_successor_gets_the_tokens() {
    let first = adapter::<Minimal>();
    call(&first, Call::TaskNew);
    let second = first.hand_over(&env::<Minimal>());
    let picked = call(&second, Call::PickNextTask);
    assert_eq!((picked.token, picked.dropped), (TOKEN, RawToken::NONE));
}

#[test]
fn what_is_not_handed_over_is_reported_to_the_successor() {
    struct Forgetful(SpinLock<FifoQueue<Self>>);

    #[policy]
    impl Scheduler for Forgetful {
        type State = ();

        fn new(_: &Env) -> Self {
            Self(SpinLock::default())
        }

        fn enqueue(&self, _: &Cx<'_>, _: &Task, token: Schedulable<Self>) {
            self.0.lock().push_back(token);
        }

        fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
            self.0.lock().pop_front()
        }

        fn reregister_prep(self) {}

        fn reregister_init(env: &Env, (): ()) -> Self {
            Self::new(env)
        }
    }

    let first = adapter::<Forgetful>();
    call(&first, Call::TaskNew);
    let second = first.hand_over(&env::<Forgetful>());
    let picked = call(&second, Call::PickNextTask);
    assert_eq!((picked.token, picked.dropped), (RawToken::NONE, TOKEN));
}

#[test]
fn what_policies_that_are_gone_have_lost_hides_nothing() {
    for _ in 0..100 {
        call(&adapter::<Careless>(), Call::TaskNew);
    }
    let careless = adapter::<Careless>();
    call(&careless, Call::TaskNew);
    assert_eq!(call(&careless, Call::TaskTick).dropped, TOKEN);
}
