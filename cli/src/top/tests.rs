//! Pages of machines that there are not.

use std::time::Duration;

use ekiden::CpuMask;
use ekiden_check::{CpuSeen, Snapshot, TaskSeen};
use ekiden_loader::{Counts, HintCounts, HintQueues, OpenQueue, PolicyStatus, Status};
use expect_test::{Expect, expect};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::{
    draw::{Sort, View, draw, lines, text},
    page::Page,
    sample::{CpuTimes, Sample},
    seconds,
    show::{Wish, wish},
    watch::Seen,
};
use crate::{
    session::LastFault,
    status::{Everything, SchedExt},
};

fn sample(at_s: u64, ekiden: Option<Status>, cpus: Vec<CpuTimes>) -> Sample {
    let scheduler = ekiden.as_ref().map(|_| "ekiden_wfq".to_owned());
    let state = Some(if scheduler.is_some() { "enabled" } else { "disabled" }.to_owned());
    let sched_ext = SchedExt { supported: true, state, scheduler, enable_seq: None };
    let everything = Everything { sched_ext, ekiden, agent: None, last_fault: None };
    Sample { at: Duration::from_secs(at_s), everything, cpus, seen: Ok(Seen::default()) }
}

fn policy(policy: &str, instance: u32, params: &str, counts: Counts) -> PolicyStatus {
    let (policy, params) = (policy.into(), params.into());
    PolicyStatus { policy, instance, params, alive: true, counts, ..Default::default() }
}

fn status(policies: Vec<PolicyStatus>) -> Status {
    let counts = Counts { tasks: 107, ..Counts::default() };
    Status { attached: true, policies, capacity: 32768, counts, ..Status::default() }
}

fn counts(tasks: u64, picks: u64, idles: u64, migrations: u64) -> Counts {
    Counts { tasks, picks, idles, migrations, ..Counts::default() }
}

/// A CPU that was busy for so many of a thousand ticks, while others waited for so long.
fn cpu(cpu: u32, busy: u64, waited_ms: u64) -> CpuTimes {
    CpuTimes { cpu, busy, total: 1000, waited_ns: Some(waited_ms * 1_000_000) }
}

fn idle(nr: u32) -> Vec<CpuTimes> {
    (0..nr).map(|cpu| CpuTimes { cpu, busy: 0, total: 0, waited_ns: Some(0) }).collect()
}

/// Two policies for two seconds.
fn busy() -> Page {
    let wfq = |counts| PolicyStatus { default: true, ..policy("wfq", 3, "slice_min_us=500", counts) };
    let before = vec![wfq(counts(90, 1000, 10, 0)), policy("fifo", 12, "", counts(4, 0, 0, 0))];
    let refusals = Counts { ticks: 440, refusals: 2, contract_violations: 1, ..counts(7, 50_000, 3, 800) };
    let after = vec![wfq(Counts { ticks: 60, ..counts(100, 21_000, 11, 6) }), policy("fifo", 12, "", refusals)];
    let cpus = vec![cpu(0, 1000, 4000), cpu(1, 250, 100), cpu(2, 0, 0)];
    Page::between(&sample(10, Some(status(before)), idle(3)), &sample(12, Some(status(after)), cpus))
}

fn check(page: &Page, view: View, width: u16, height: u16, expected: Expect) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(page, view, frame.area(), frame.buffer_mut())).unwrap();
    expected.assert_eq(&(lines(terminal.backend().buffer()).join("\n") + "\n"));
}

fn with_keys(sort: Sort, is_paused: bool) -> View {
    View { sort, is_paused, has_keys: true }
}

#[test]
fn a_page_shows_rates_of_each_policy_and_what_each_cpu_does() {
    check(
        &busy(),
        with_keys(Sort::Order, false),
        110,
        12,
        expect![[r#"
            scheduler  ekiden_wfq (sched_ext)
            tasks      107 of 32768

            policy number parameters         tasks share  picks/s  idle/s moves/s refusals violations state
            wfq         3 slice_min_us=500     100  12 %    10000     0.5     3.0        0          0 default
            fifo       12                        7  88 %    25000     1.5     400        2          1

             cpu                busy waiting   cpu                busy waiting   cpu                busy waiting
               0 ████████████  100 %     2.0     1 ███·········   25 %     0.1     2 ············    0 %     0.0


             q ends   s sorts (now by order in which they are asked)   space pauses
        "#]],
    );
}

#[test]
fn queues_of_hints_are_shown_with_what_they_have_counted() {
    let with = |hints| {
        let said = HintCounts { hints, refused: 2, full: 3, notices: 5, lost: 1, ..HintCounts::default() };
        let list = vec![OpenQueue { queue: 9, owner: 4711, counts: said }];
        let queues = Some(HintQueues { opened: 4, open: 1, counts: said, list });
        status(vec![PolicyStatus { queues, ..policy("locality", 3, "", counts(1, 0, 0, 0)) }])
    };
    let page = Page::between(&sample(10, Some(with(100)), idle(1)), &sample(12, Some(with(300)), vec![cpu(0, 0, 0)]));
    expect![[r#"
        scheduler  ekiden_wfq (sched_ext)
        tasks      107 of 32768

        policy   number parameters   tasks share  picks/s  idle/s moves/s refusals violations state
        locality      3                  1     –        0       0       0        0          0
        queues     locality: 1 open of 4, 100 hints/s; 300 hints, 2 refused, 3 had no room; 5 notices, 1 had no room
                   queue 9 of process 4711: 300 hints, 2 refused, 3 had no room; 5 notices, 1 had no room

         cpu                busy waiting
           0 ············    0 %     0.0
    "#]]
    .assert_eq(&text(&page, 110));
}

/// Two CPUs, of which the second is idle while a task waits on the first.
fn wasteful() -> Snapshot {
    let cpu =
        |cpu, nr_running| CpuSeen { cpu, nr_running, is_online: true, is_idle: nr_running == 0, ..CpuSeen::default() };
    let task = |pid, name: &str, waited_ms: u64, waits_ms: u64| TaskSeen {
        pid,
        name: name.into(),
        is_running: waits_ms == 0,
        is_waiting: waits_ms > 0,
        allowed: CpuMask::from_words(&[3]),
        waited_ns: waited_ms * 1_000_000,
        waits_ns: waits_ms * 1_000_000,
        ..TaskSeen::default()
    };
    Snapshot { cpus: vec![cpu(0, 2), cpu(1, 0)], tasks: vec![task(7, "make", 5, 0), task(8, "cc1", 950, 900)] }
}

#[test]
fn wasted_cpus_and_those_who_wait_are_shown_under_any_scheduler() {
    let (before, mut after) = (sample(1, None, idle(2)), sample(2, None, vec![cpu(0, 900, 1_000), cpu(1, 0, 0)]));
    let snapshot = wasteful();
    let mut seen = Seen::default();
    for snapshot in [&snapshot, &Snapshot { tasks: Vec::new(), ..snapshot.clone() }] {
        seen.add(snapshot);
    }
    seen.tasks = snapshot.tasks.into_iter().map(|task| (task.pid, task)).collect();
    after.seen = Ok(seen);
    let page = Page::between(&before, &after);
    expect![[r#"
        scheduler  the kernel's own (sched_ext is disabled)
        No policy runs. Start one with `sudo ekiden run wfq`, or look at one with `ekiden sim pipe -p wfq`.
        wasted     0.50 CPUs, idle while tasks waited that could use them
        waited       950.0 ms  cc1 8 on CPU 0, now for 900.0 ms
                       5.0 ms  make 7 on CPU 0

         cpu                busy waiting wasted   cpu                busy waiting wasted
           0 ███████████·   90 %     1.0    0 %     1 ············    0 %     0.0   50 %
    "#]]
    .assert_eq(&text(&page, 100));
    assert_eq!((page.wasted_cpus, page.cpus[1].wasted_percent), (Some(0.5), Some(50.0)));
    after.seen = Err("this needs root".into());
    expect![[r#"
        scheduler  the kernel's own (sched_ext is disabled)
        No policy runs. Start one with `sudo ekiden run wfq`, or look at one with `ekiden sim pipe -p wfq`.
        waits      not known: this needs root

         cpu                busy waiting   cpu                busy waiting
           0 ███████████·   90 %     1.0     1 ············    0 %     0.0
    "#]]
    .assert_eq(&text(&Page::between(&before, &after), 100));
}

#[test]
fn policies_are_sorted_by_what_is_chosen_and_a_pause_is_shown() {
    check(
        &busy(),
        with_keys(Sort::Picks, true),
        110,
        9,
        expect![[r#"
            scheduler  ekiden_wfq (sched_ext)
            tasks      107 of 32768

            policy number parameters         tasks share  picks/s  idle/s moves/s refusals violations state
            fifo       12                        7  88 %    25000     1.5     400        2          1
            wfq         3 slice_min_us=500     100  12 %    10000     0.5     3.0        0          0 default


             q ends   s sorts (now by picks)   space goes on  PAUSED
        "#]],
    );
}

#[test]
fn a_small_terminal_shows_what_it_has_room_for() {
    check(
        &busy(),
        with_keys(Sort::Order, false),
        80,
        9,
        expect![[r#"
            scheduler  ekiden_wfq (sched_ext)
            tasks      107 of 32768

            policy number   tasks share  picks/s moves/s refusals violations state
            wfq         3     100  12 %    10000     3.0        0          0 default
            fifo       12       7  88 %    25000     400        2          1
            parameters wfq: slice_min_us=500

             q ends   s sorts (now by order in which they are asked)   space pauses
        "#]],
    );
    check(
        &busy(),
        with_keys(Sort::Order, false),
        60,
        10,
        expect![[r#"
            scheduler  ekiden_wfq (sched_ext)
            tasks      107 of 32768

            policy number   tasks share  picks/s violations state
            wfq         3     100  12 %    10000          0 default
            fifo       12       7  88 %    25000          1
            parameters wfq: slice_min_us=500


             q ends   s sorts (now by order in which they are asked)   s
        "#]],
    );
    check(
        &busy(),
        with_keys(Sort::Order, false),
        20,
        2,
        expect![[r#"
            scheduler  ekiden_wf
             q ends   s sorts (n
        "#]],
    );
}

#[test]
fn nothing_that_matters_is_cut_at_80_columns() {
    let reason = "panicked at policies/src/global_fifo.rs:112: the queue of CPU 3 has a task that waits for CPU 5, which is offline";
    let dead = PolicyStatus {
        alive: false,
        fault: Some(reason.into()),
        ..policy("global-fifo", 4, "slice_us=3000,depth=128,patience_us=20000,weight_of_batch=7", counts(4, 0, 0, 0))
    };
    let said = HintCounts { hints: 300, refused: 2, full: 3, notices: 5, lost: 1, ..HintCounts::default() };
    let list = vec![OpenQueue { queue: 9, owner: 4711, counts: said }];
    let queues = Some(HintQueues { opened: 4, open: 1, counts: said, list });
    let policies =
        || vec![dead.clone(), PolicyStatus { queues: queues.clone(), ..policy("wfq", 5, "", counts(1, 0, 0, 0)) }];
    let page =
        Page::between(&sample(0, Some(status(policies())), idle(2)), &sample(1, Some(status(policies())), idle(2)));
    let shown = text(&page, 80);
    expect![[r#"
        scheduler  ekiden_wfq (sched_ext)
        tasks      107 of 32768

        policy      number   tasks share  picks/s moves/s refusals violations state
        global-fifo      4       4     –        0       0        0          0 taken out
        wfq              5       1     –        0       0        0          0
        parameters global-fifo:
                   slice_us=3000,depth=128,patience_us=20000,weight_of_batch=7
        queues     wfq: 1 open of 4, 0 hints/s; 300 hints, 2 refused, 3 had no room; 5
                   notices, 1 had no room
                   queue 9 of process 4711: 300 hints, 2 refused, 3 had no room; 5
                   notices, 1 had no room
        fault      global-fifo, number 4: panicked at policies/src/global_fifo.rs:112:
                   the queue of CPU 3 has a task that waits for CPU 5, which is offline

         cpu                busy waiting   cpu                busy waiting
           0 ············      –     0.0     1 ············      –     0.0
    "#]]
    .assert_eq(&shown);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(reason.split(' ').all(|word| words.contains(&word)) && shown.contains("taken out"), "{shown}");
}

#[test]
fn without_a_policy_it_says_what_to_do_next() {
    let page = Page::between(&sample(0, None, idle(2)), &sample(1, None, vec![cpu(0, 30, 0), cpu(1, 500, 2500)]));
    expect![[r#"
        scheduler  the kernel's own (sched_ext is disabled)
        No policy runs. Start one with `sudo ekiden run wfq`, or look at one with `ekiden sim pipe -p wfq`.

         cpu                busy waiting   cpu                busy waiting
           0 ············    3 %     0.0     1 ██████······   50 %     2.5
    "#]]
    .assert_eq(&text(&page, 100));
}

#[test]
fn a_policy_that_was_taken_out_stays_with_its_reason() {
    let dead = PolicyStatus {
        alive: false,
        fault: Some("panicked at lossy.rs:12: no".into()),
        ..policy("lossy", 4, "", Counts::default())
    };
    let policies = || vec![policy("wfq", 3, "", Counts::default()), dead.clone()];
    let mut after = sample(1, Some(status(policies())), idle(1));
    let (policy, reason) = ("lossy".into(), "panicked at lossy.rs:12: no".into());
    after.everything.last_fault = Some(LastFault { policy, reason, at: 0, recording: None });
    let page = Page::between(&sample(0, Some(status(policies())), idle(1)), &after);
    expect![[r#"
        scheduler  ekiden_wfq (sched_ext)
        tasks      107 of 32768

        policy number parameters   tasks share  picks/s  idle/s moves/s refusals violations state
        wfq         3                  0     –        0       0       0        0          0
        lossy       4                  0     –        0       0       0        0          0 taken out
        fault      lossy, number 4: panicked at lossy.rs:12: no
        last fault lossy: panicked at lossy.rs:12: no

         cpu                busy waiting
           0 ············      –     0.0
    "#]]
    .assert_eq(&text(&page, 110));
}

#[test]
fn what_has_no_earlier_look_has_no_rate() {
    let old = sample(1, Some(status(vec![policy("wfq", 3, "", counts(1, 500, 0, 0))])), idle(1));
    // Another instance took the policy slot: its counts say nothing about the one before.
    let new = sample(2, Some(status(vec![policy("wfq", 5, "", counts(1, 700, 0, 0))])), vec![cpu(1, 10, 0)]);
    for page in [Page::between(&old, &old), Page::between(&old, &new)] {
        assert_eq!(page.policies[0].picks_per_s, None);
        assert_eq!((page.cpus[0].busy_percent, page.cpus[0].waiting), (None, None));
    }
}

#[test]
fn counts_that_go_back_are_no_rate_below_zero() {
    let look = |at, picks, ticks| {
        let cpus = vec![CpuTimes { cpu: 0, busy: ticks, total: 100 + at, waited_ns: None }];
        sample(at, Some(status(vec![policy("wfq", 3, "", counts(1, picks, 0, 0))])), cpus)
    };
    let page = Page::between(&look(1, 500, 9), &look(2, 400, 8));
    assert_eq!(page.policies[0].picks_per_s, Some(0.0));
    assert_eq!((page.cpus[0].busy_percent, page.cpus[0].waiting), (Some(0.0), None));
}

#[test]
fn many_cpus_stand_in_columns_and_are_cut_where_the_screen_ends() {
    let after = sample(1, None, (0..16).map(|number| cpu(number, u64::from(number) * 60, 0)).collect());
    let page = Page::between(&sample(0, None, idle(16)), &after);
    check(
        &page,
        View::default(),
        75,
        8,
        expect![[r#"
            scheduler  the kernel's own (sched_ext is disabled)
            No policy runs. Start one with `sudo ekiden run wfq`, or look at one with
                       `ekiden sim pipe -p wfq`.

             cpu                busy waiting   cpu                busy waiting
               0 ············    0 %     0.0     8 ██████······   48 %     0.0
               1 █···········    6 %     0.0     9 ██████······   54 %     0.0
                 and 6 more                        and 6 more
        "#]],
    );
}

#[test]
fn programs_get_every_figure() {
    let page = serde_json::to_value(busy()).unwrap();
    assert_eq!(page["interval_s"], 2.0);
    assert_eq!(page["policies"][0]["picks_per_s"], 10_000.0);
    assert_eq!(page["policies"][1]["migrations_per_s"], 400.0);
    assert_eq!(page["cpus"][0]["waiting"], 2.0);
    assert_eq!(page["cpus"][1]["busy_percent"], 25.0);
}

#[test]
fn keys_end_sort_and_pause() {
    let key = |code, modifiers| wish(KeyEvent::new(code, modifiers));
    assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Wish::End);
    assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Wish::End);
    assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), Wish::Nothing);
    assert_eq!(key(KeyCode::Char('s'), KeyModifiers::NONE), Wish::Sort);
    assert_eq!(key(KeyCode::Char(' '), KeyModifiers::NONE), Wish::Pause);
}

#[test]
fn intervals_are_neither_nothing_nor_for_ever() {
    assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    for wrong in ["0", "-1", "NaN", "inf", "1e9", "often"] {
        assert!(seconds(wrong).is_err(), "{wrong}");
    }
}
