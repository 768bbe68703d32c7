//! For each invariant: a planted fault makes its check fire, and the same without the fault does not.

use ekiden::Topology;
use ekiden_check::{Checker, Limits, Violation};
use ekiden_trace::{Header, Host, Record, What, names};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A trace by hand: (milliseconds, CPU, what, PID, value).
type Line = (u64, u32, What, u32, u64);

fn check_with(limits: &Limits, lines: &[Line]) -> Vec<Violation> {
    check_of(&Header { policy: Some("planted".into()), ..Header::default() }, limits, lines)
}

fn check_of(of: &Header, limits: &Limits, lines: &[Line]) -> Vec<Violation> {
    let header = Header { policy: of.policy.clone(), host: of.host, ..Header::of(&Topology::flat(4)) };
    let mut checker = Checker::new(&header, limits);
    for (ms, cpu, what, pid, value) in lines.iter().copied() {
        checker.record(&Record { time_ns: ms * MS, cpu, what, pid, value });
        if what == What::New {
            let name = names(["", "one", "two", "three"][pid as usize]).next().unwrap();
            checker.record(&Record { time_ns: ms * MS, cpu: 0, what: What::Name, pid, value: name });
        }
    }
    checker.finish()
}

/// All but the sum of what is wasted, which most of these traces waste much of.
fn others() -> Limits {
    Limits { waste_permille: 1_000, ..Limits::default() }
}

fn check(lines: &[Line]) -> Vec<Violation> {
    check_with(&others(), lines)
}

/// The violation, where exactly one is to be found.
fn only(found: Vec<Violation>, check: &str) -> Violation {
    let [violation] = <[_; 1]>::try_from(found).unwrap_or_else(|found| panic!("{found:#?}"));
    assert_eq!(violation.check, check, "{violation}");
    violation
}

fn pids(violation: &Violation) -> Vec<u32> {
    violation.tasks.iter().map(|task| task.pid).collect()
}

/// Tasks 1 and 2 begin on CPU 0; 1 runs there.
fn two_on_cpu_0() -> Vec<Line> {
    vec![
        (0, 0, What::New, 1, 0),
        (0, 0, What::Enqueue, 1, 0),
        (0, 0, What::Run, 1, 0),
        (0, 0, What::New, 2, 0),
        (0, 0, What::Enqueue, 2, 0),
    ]
}

/// Both get the CPU in turn, and then go, so that nothing else is wrong.
fn turns(from_ms: u64, until_ms: u64) -> Vec<Line> {
    let mut lines = Vec::new();
    let (mut runs, mut waits) = (1, 2);
    for ms in (from_ms..until_ms).step_by(20) {
        lines.extend([(ms, 0, What::Preempt, runs, 0), (ms, 0, What::Enqueue, runs, 0), (ms, 0, What::Run, waits, 0)]);
        (runs, waits) = (waits, runs);
    }
    lines.extend([
        (until_ms, 0, What::Exit, runs, 0),
        (until_ms, 0, What::Run, waits, 0),
        (until_ms + 1, 0, What::Exit, waits, 0),
    ]);
    lines
}

#[test]
fn a_cpu_that_idles_while_another_has_two_is_found_with_cpus_tasks_and_times() {
    let found = check(&[two_on_cpu_0(), turns(20, 1_500)].concat());
    let violation = only(found, "work-conservation");
    assert_eq!((violation.since_ns, violation.at_ns), (SECOND, SECOND + 100 * MS));
    assert_eq!(violation.cpus, [1, 2, 3, 0]);
    let text = violation.to_string();
    assert!(text.contains("CPUs 1-3 are idle while on CPUs 0"), "{text}");
    assert!(text.contains("one (PID 1)") || text.contains("two (PID 2)"), "{text}");
}

#[test]
fn a_kernel_that_wastes_cpus_is_found_by_whichever_scheduler_it_does() {
    let lines = [two_on_cpu_0(), turns(20, 1_500)].concat();
    let of = |host| check_of(&Header { host, ..Header::default() }, &others(), &lines);
    only(of(Host::Kernel), "work-conservation");
    // A simulation without a policy has none that is to be judged.
    assert!(of(Host::Simulator).is_empty());
}

#[test]
fn waste_that_is_over_in_time_is_none() {
    // No task waits any more before M is over, or while S has not come.
    assert_eq!(check(&[two_on_cpu_0(), turns(20, 1_080)].concat()), []);
    assert_eq!(check(&[two_on_cpu_0(), turns(20, 900)].concat()), []);
}

#[test]
fn a_task_that_may_not_run_on_the_idle_cpu_wastes_nothing() {
    let mut lines = two_on_cpu_0();
    for pid in [1, 2] {
        lines.extend([(0, 0, What::Affinity, pid, 1), (0, 0, What::Allowed, pid, 0b1)]);
    }
    assert_eq!(check(&[lines.clone(), turns(20, 1_500)].concat()), []);
    lines.extend([(0, 0, What::Affinity, 2, 2), (0, 0, What::Allowed, 2, 0b101)]);
    let violation = only(check(&[lines, turns(20, 1_500)].concat()), "work-conservation");
    assert_eq!((violation.cpus.as_slice(), pids(&violation).as_slice()), (&[2, 0][..], &[2][..]));
}

#[test]
fn cpus_that_are_offline_are_not_wasted() {
    let offline = (1..4).map(|cpu| (0, cpu, What::Offline, 0, 0)).collect();
    assert_eq!(check(&[two_on_cpu_0(), offline, turns(20, 1_500)].concat()), []);
}

/// Two of three tasks share a CPU of four, another one every 10 ms: no CPU is idle for more than 20 ms, and no task waits for
/// more than 10.
fn waste_in_turn(until_ms: u64) -> Vec<Line> {
    let mut lines: Vec<Line> = (1..=3).flat_map(|pid| [(0, 0, What::New, pid, 0)]).collect();
    let mut running = Vec::new();
    for (step, ms) in (0..).zip((0..until_ms).step_by(10)) {
        lines.extend(running.drain(..).map(|(cpu, pid)| (ms, cpu, What::Preempt, pid, 0)));
        let [crowded, other] = [step % 4, (step + 1) % 4];
        let [runs, waits, alone] = [0, 1, 2].map(|place| 1 + (step + place) % 3);
        for (cpu, pid) in [(crowded, runs), (other, alone)] {
            lines.extend([(ms, cpu, What::Enqueue, pid, 0), (ms, cpu, What::Run, pid, 0)]);
            running.push((cpu, pid));
        }
        lines.push((ms, crowded, What::Enqueue, waits, 0));
    }
    lines.extend((1..=3).map(|pid| (until_ms, 0, What::Exit, pid, 0)));
    lines
}

#[test]
fn waste_that_takes_turns_is_found_by_its_sum() {
    let violation = only(check_with(&Limits::default(), &waste_in_turn(1_000)), "wasted-time");
    assert_eq!((violation.since_ns, violation.at_ns), (0, SECOND));
    assert_eq!((violation.cpus.as_slice(), pids(&violation).len()), (&[0, 1, 2, 3][..], 3));
    // Nine of each 10 ms: the first millisecond of each wait does not count.
    assert!(violation.message.starts_with("0.900 CPU-seconds of 4.000 were wasted, 22.5 %"), "{violation}");
    assert_eq!(check_with(&others(), &waste_in_turn(1_000)), [], "each piece of it is short");
    let found = check_with(&Limits::default(), &waste_in_turn(2_500));
    let windows: Vec<u64> = found.iter().map(|violation| violation.since_ns / SECOND).collect();
    assert_eq!(windows, [0, 1, 2], "the last one is over the bound before it is over");
}

#[test]
fn waste_up_to_the_bound_is_none() {
    let limits = |waste_permille| Limits { waste_permille, ..Limits::default() };
    assert_eq!(check_with(&limits(225), &waste_in_turn(1_000)), []);
    only(check_with(&limits(224), &waste_in_turn(1_000)), "wasted-time");
    // 8 × 9 ms of the 80 that may be wasted, then 9 × 9.
    assert_eq!(check_with(&Limits::default(), &waste_in_turn(80)), []);
    only(check_with(&Limits::default(), &waste_in_turn(90)), "wasted-time");
}

#[test]
fn a_wait_that_is_over_before_balancing_could_happen_wastes_nothing() {
    let limits = |ms| Limits { patience_ns: ms * MS, waste_permille: 1, ..Limits::default() };
    assert_eq!(check_with(&limits(10), &waste_in_turn(1_000)), []);
    let violation = only(check_with(&limits(9), &waste_in_turn(1_000)), "wasted-time");
    assert!(violation.message.starts_with("0.100 CPU-seconds"), "{violation}");
}

#[test]
fn nothing_is_wasted_in_turn_that_no_waiting_task_may_use() {
    let mut lines = waste_in_turn(1_000);
    let offline: Vec<Line> = lines.drain(..3).chain((0..4).map(|cpu| (0, cpu, What::Offline, 0, 0))).collect();
    let found = check_with(&Limits::default(), &[offline, lines.clone()].concat());
    assert!(found.iter().all(|violation| violation.check != "wasted-time"), "{found:#?}");
    // A task that may run on one CPU only wastes none of the others.
    let mut bound = two_on_cpu_0();
    bound.extend([(0, 0, What::Affinity, 1, 1), (0, 0, What::Allowed, 1, 1)]);
    bound.extend([(0, 0, What::Affinity, 2, 1), (0, 0, What::Allowed, 2, 1)]);
    assert_eq!(check_with(&Limits::default(), &[bound, turns(20, 1_500)].concat()), []);
    // One that other classes have.
    let departed = [two_on_cpu_0(), vec![(0, 0, What::Depart, 1, 0), (0, 0, What::Depart, 2, 0)]].concat();
    assert_eq!(check_with(&Limits::default(), &[departed, turns(20, 1_500)].concat()), []);
}

#[test]
fn an_idle_cpu_that_its_own_task_waits_for_is_not_wasted() {
    // CPU 1 takes 5 ms to begin with its task, which the check of kicks is about.
    let mut lines: Vec<Line> = (1..=2).flat_map(|pid| [(0, 0, What::New, pid, 0)]).collect();
    for ms in (0..1_000).step_by(10) {
        lines.extend([(ms, 1, What::Enqueue, 1, 0), (ms + 5, 1, What::Run, 1, 0), (ms + 9, 1, What::Block, 1, 0)]);
    }
    let limits = Limits { kick_ns: 10 * MS, waste_permille: 1, ..Limits::default() };
    assert_eq!(check_with(&limits, &lines), []);
    // A second one there could run elsewhere meanwhile.
    lines.insert(2, (0, 1, What::Enqueue, 2, 0));
    lines.push((1_000, 1, What::Exit, 2, 0));
    assert!(check_with(&limits, &lines).iter().any(|violation| violation.check == "wasted-time"));
}

#[test]
fn two_on_one_cpu_and_one_on_two_are_found() {
    let mut lines = two_on_cpu_0();
    lines.push((1, 0, What::Run, 2, 0));
    let violation = only(check(&lines), "double-run");
    assert_eq!((violation.cpus.as_slice(), pids(&violation).as_slice()), (&[0][..], &[2, 1][..]));

    let lines =
        [(0, 0, What::New, 1, 0), (0, 0, What::Enqueue, 1, 0), (0, 0, What::Run, 1, 0), (1, 3, What::Run, 1, 0)];
    let violation = only(check(&lines), "double-run");
    assert_eq!((violation.cpus.as_slice(), pids(&violation).as_slice()), (&[0, 3][..], &[1][..]));

    let lines = [(0, 0, What::New, 1, 0), (0, 0, What::Run, 1, 0)];
    assert!(only(check(&lines), "double-run").message.contains("without having waited"));
}

#[test]
fn a_task_on_a_cpu_that_it_may_not_use_is_found() {
    let begin = [(0, 0, What::New, 1, 0), (0, 0, What::Allowed, 1, 0b10), (0, 0, What::Enqueue, 1, 0)];
    let run = [(0, 0, What::Run, 1, 0)];
    assert!(only(check(&[&begin[..], &run].concat()), "affinity").message.contains("forbids"));
    let offline = [(0, 0, What::Affinity, 1, 4), (0, 0, What::Offline, 0, 0)];
    assert!(only(check(&[&begin[..], &offline, &run].concat()), "affinity").message.contains("offline"));
    let allowed = [(0, 0, What::Affinity, 1, 4), (0, 0, What::Allowed, 1, 0b11)];
    assert_eq!(check(&[&begin[..], &allowed, &run].concat()), []);
}

#[test]
fn a_task_that_waits_too_long_is_found_once_and_when_it_still_waits_at_the_end() {
    let limits = Limits { every_ns: 100 * SECOND, ..others() };
    let ticks = (1..80).map(|tick| (tick * 100, 0, What::Tick, 1, 0)).collect::<Vec<Line>>();
    let late = [&two_on_cpu_0()[..], &ticks].concat();
    let violation = only(check_with(&limits, &late), "wait-bound");
    assert_eq!((violation.since_ns, violation.cpus.as_slice(), pids(&violation)), (0, &[0][..], vec![2]));
    let switch = [(8_000, 0, What::Preempt, 1, 0), (8_000, 0, What::Enqueue, 1, 0), (8_000, 0, What::Run, 2, 0)];
    only(check_with(&limits, &[&late[..], &switch].concat()), "wait-bound");
    let in_time: Vec<Line> = late.iter().copied().filter(|line| line.0 < 4_900).collect();
    assert_eq!(check_with(&limits, &in_time), []);
}

#[test]
fn a_task_that_waits_for_an_idle_cpu_is_lost() {
    let lines = [
        (0, 1, What::New, 1, 0),
        (0, 1, What::Enqueue, 1, 0),
        (0, 0, What::New, 2, 0),
        (0, 0, What::Enqueue, 2, 0),
        (0, 0, What::Run, 2, 0),
        (150, 0, What::Tick, 2, 0),
    ];
    let violation = only(check(&lines), "lost-task");
    assert_eq!((violation.cpus.as_slice(), pids(&violation)), (&[1][..], vec![1]));
    let mut found_in_time = lines.to_vec();
    found_in_time.insert(5, (0, 1, What::Run, 1, 0));
    assert_eq!(check(&found_in_time), []);
}

#[test]
fn a_kick_that_comes_late_is_found() {
    let begin = [(0, 1, What::New, 1, 0), (10, 1, What::Enqueue, 1, 0)];
    let run = |ms| [&begin[..], &[(ms, 1, What::Run, 1, 0), (ms + 1, 1, What::Exit, 1, 0)]].concat();
    let violation = only(check(&run(14)), "kick");
    assert_eq!((violation.since_ns, violation.at_ns), (10 * MS, 14 * MS));
    assert_eq!(check(&run(10)), []);
}

#[test]
fn a_task_that_gets_less_than_its_share_is_found() {
    let limits = Limits { every_ns: 100 * SECOND, lag_ns: Some(50 * MS), ..others() };
    // Task 1 gets 30 ms of each 40.
    let mut lines = two_on_cpu_0();
    for ms in (0..2_400).step_by(40) {
        lines.extend([
            (ms + 30, 0, What::Preempt, 1, 0),
            (ms + 30, 0, What::Enqueue, 1, 0),
            (ms + 30, 0, What::Run, 2, 0),
            (ms + 40, 0, What::Preempt, 2, 0),
            (ms + 40, 0, What::Enqueue, 2, 0),
            (ms + 40, 0, What::Run, 1, 0),
        ]);
    }
    let found = check_with(&limits, &lines);
    assert!(!found.is_empty() && found.iter().all(|violation| violation.check == "fairness"), "{found:#?}");
    // These shares are fair if 1 weighs three times as much: five steps of nice.
    let nice = [(0, 0, What::Nice, 2, 5)];
    assert_eq!(check_with(&limits, &[&lines[..5], &nice, &lines[5..]].concat()), []);
}

#[test]
fn after_the_policy_was_taken_out_its_promises_are_void() {
    let fault = vec![(10, 0, What::Fault, 0, 0)];
    assert_eq!(check(&[two_on_cpu_0(), fault, turns(20, 1_500)].concat()), []);
}

/// Task 1 is in group 7, which has 20 ms in each 100 ms, and runs for so long of each.
fn in_group(run_ms: u64) -> Vec<Line> {
    let mut lines = vec![
        (0, 0, What::Limit, 7, 20 * MS),
        (0, 1, What::Limit, 7, 100 * MS),
        (0, 0, What::New, 1, 0),
        (0, 0, What::Group, 1, 7),
    ];
    for ms in (0..2_200).step_by(100) {
        lines.extend([(ms, 0, What::Enqueue, 1, 0), (ms, 0, What::Run, 1, 0), (ms + run_ms, 0, What::Throttle, 1, 0)]);
    }
    lines
}

#[test]
fn a_group_that_gets_more_than_its_limit_is_found() {
    let violation = only(check(&in_group(25)), "bandwidth");
    assert_eq!((violation.since_ns, violation.at_ns), (0, 2 * SECOND));
    assert!(violation.message.starts_with("group 7 had 500 ms of CPU time in 20 periods of 100 ms"), "{violation}");
    // What a tick on each CPU may add is no violation.
    assert_eq!(check(&in_group(21)), []);
    let free: Vec<Line> = in_group(25).into_iter().filter(|line| line.2 != What::Group).collect();
    assert_eq!(check(&free), [], "a task that is in no group has no limit");
}

#[test]
fn a_task_that_runs_on_over_the_periods_is_counted_in_each() {
    let mut lines = in_group(20);
    lines.truncate(6);
    lines.push((4_000, 0, What::Tick, 1, 0));
    let found = check(&lines);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found.iter().all(|violation| violation.message.contains("had 2000 ms")), "{found:#?}");
}

#[test]
fn a_call_that_takes_too_long_is_found() {
    let call = |took_ns| vec![(0, 0, What::New, 1, 0), (5, 2, What::Call, 1, took_ns)];
    let violation = only(check(&call(3 * MS)), "call-time");
    assert_eq!((violation.since_ns, violation.at_ns), (2 * MS, 5 * MS));
    assert_eq!((violation.cpus.as_slice(), pids(&violation)), (&[2][..], vec![1]));
    assert_eq!(check(&call(MS)), []);
}

#[test]
fn locks_taken_in_two_orders_are_found() {
    let nested = |ms, cpu, outer, inner| {
        [
            (ms, cpu, What::Lock, 0, outer),
            (ms, cpu, What::Lock, 0, inner),
            (ms, cpu, What::Unlock, 0, inner),
            (ms, cpu, What::Unlock, 0, outer),
        ]
    };
    let violation = only(check(&[nested(1, 0, 4, 5), nested(2, 3, 5, 4)].concat()), "lock-order");
    assert_eq!((violation.since_ns, violation.at_ns, violation.cpus.as_slice()), (MS, 2 * MS, &[0, 3][..]));
    assert_eq!(check(&[nested(1, 0, 4, 5), nested(2, 3, 4, 5), nested(3, 1, 4, 4)].concat()), []);
    let one_by_one = [(1, What::Lock, 5), (2, What::Unlock, 5), (3, What::Lock, 4), (4, What::Unlock, 4)];
    let one_by_one = one_by_one.map(|(ms, what, class)| (ms, 3, what, 0, class));
    assert_eq!(check(&[&nested(0, 0, 4, 5)[..], &one_by_one].concat()), []);
}

/// The policy is replaced at 10 ms; what follows is for the test.
fn upgraded(then: &[Line]) -> Vec<Line> {
    let upgrade = [(10, 0, What::Upgrade, 0, 1), (10, 0, What::Upgrade, 0, 0)];
    [&two_on_cpu_0()[..], &upgrade, then].concat()
}

#[test]
fn a_task_that_an_upgrade_forgets_is_found() {
    let limits = Limits { every_ns: 100 * SECOND, ..others() };
    let ticks = |until| (1..until).map(|tick| (tick * 100, 0, What::Tick, 1, 0)).collect::<Vec<Line>>();
    let violation = only(check_with(&limits, &upgraded(&ticks(15))), "upgrade");
    assert_eq!((violation.since_ns, pids(&violation), violation.cpus.as_slice()), (10 * MS, vec![2], &[0][..]));
    assert_eq!(check_with(&limits, &upgraded(&ticks(9))), [], "there is time left");
    assert_eq!(check_with(&limits, &upgraded(&turns(20, 1_500))), []);
    let departs = [&[(20, 0, What::Depart, 2, 0)][..], &ticks(15)].concat();
    assert_eq!(check_with(&limits, &upgraded(&departs)), []);
}

#[test]
fn a_task_that_is_picked_in_the_middle_of_an_upgrade_is_found() {
    let mut lines = upgraded(&turns(20, 100));
    lines.insert(6, (10, 0, What::Run, 2, 0));
    lines.insert(6, (10, 0, What::Block, 1, 0));
    let found = check(&lines[..9]);
    assert_eq!(only(found, "upgrade").message, "two (PID 2) begins to run on CPU 0 while the policy is being replaced");
}

#[test]
fn a_clock_that_jumps_by_centuries_does_not_take_as_long() {
    let found = check(&[two_on_cpu_0(), vec![(18_000_000_000_000, 0, What::Tick, 1, 0)]].concat());
    let checks: Vec<&str> = found.iter().map(|violation| violation.check).collect();
    assert_eq!(checks, ["wait-bound", "work-conservation"], "{found:#?}");
}

#[test]
fn two_that_run_for_centuries_on_one_cpu_are_no_reason_to_panic() {
    let limits = Limits { lag_ns: Some(50 * MS), ..others() };
    // The second runs elsewhere, and still counts where it waited.
    let lines = [two_on_cpu_0(), vec![(0, 1, What::Run, 2, 0), (18_000_000_000_000, 0, What::Tick, 1, 0)]].concat();
    assert_eq!(check_with(&limits, &lines), []);
}
