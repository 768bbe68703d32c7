//! What has a turn where a run has no time for all: tests, the policies that a test is about, parts of what it does.

use std::{
    cell::Cell,
    collections::BTreeSet,
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use ekiden_policies::NAMES;

use crate::pool::Test;

/// Of the tests in a line one runs at this turn and the next one at the next. What a line has twice runs twice as often. Most lines have what is
/// judged in both kinds of machine, in that of one stream of instructions and in that whose CPUs run at once. The long storm has the even turns, so
/// what takes longer of another line has the odd ones; of the tests of either kind some run at each turn.
const IN_TURNS: &[&[&str]] = &[
    &[
        "policies_live_through_a_storm_of_everything_at_once",
        "modules_load_run_and_unload_again_and_again",
        "policies_live_through_a_storm_of_everything_at_once",
        "in_parallel_modules_load_run_and_unload",
    ],
    &["policies_live_beside_a_hostile_neighbour", "in_parallel_policies_live_beside_a_hostile_neighbour"],
    &["policies_live_through_a_storm_and_no_task_is_lost", "in_parallel_policies_live_through_a_storm"],
    &[
        "an_agent_that_ends_in_any_way_gives_every_task_back_soon",
        "in_parallel_an_agent_that_ends_gives_every_task_back",
    ],
    &["all_leaves_while_timers_start_each_other", "in_parallel_all_leaves_while_timers_start_each_other"],
    &["every_policy_lives_in_an_agent_and_no_task_is_lost", "in_parallel_every_policy_lives_in_an_agent"],
    &["policies_take_over_from_each_other_in_an_agent", "in_parallel_policies_take_over_from_each_other_in_an_agent"],
    &[
        "a_policy_moves_between_an_agent_and_the_kernel_and_no_task_is_lost",
        "in_parallel_a_policy_moves_between_an_agent_and_the_kernel",
    ],
    &["in_parallel_policies_come_are_ordered_and_leave", "policies_come_are_ordered_and_leave_and_nothing_is_refused"],
    &[
        "in_parallel_every_fault_beside_another_policy_is_contained",
        "every_fault_of_the_list_is_contained_on_four_cpus",
    ],
    &["every_fault_of_the_list_is_contained_on_one_cpu", "in_parallel_every_fault_of_a_lone_policy_is_contained"],
    &[
        "in_parallel_a_panic_in_each_call_ends_only_the_policy",
        "a_panic_in_each_call_of_the_trait_ends_only_the_policy",
    ],
    &[
        "in_parallel_a_policy_that_panics_goes_alone",
        "a_policy_that_panics_beside_another_goes_alone_and_its_tasks_go_on",
    ],
    &["in_parallel_what_policies_did_is_replayed", "what_policies_did_in_the_kernel_is_replayed_without_a_difference"],
    &[
        "in_parallel_policies_take_over_from_each_other",
        "policies_take_over_from_each_other_a_thousand_times_and_no_task_is_lost",
    ],
    &[
        "in_parallel_a_picked_task_that_may_not_run_there_any_more_waits_elsewhere",
        "a_task_that_was_picked_and_may_not_run_there_any_more_waits_elsewhere",
    ],
    &["a_user_who_fills_the_task_table_takes_no_cpu_from_others", "in_parallel_a_full_task_table_starves_no_task"],
    &[
        "in_parallel_generated_policies_end_or_do_no_harm",
        "generated_policies_end_with_a_reason_or_do_no_harm_on_one_cpu",
        "generated_policies_end_with_a_reason_or_do_no_harm_on_four_cpus",
    ],
    // On one CPU and on two.
    &["an_interrupt_is_short_whatever_crowds_are_limited", "limits_hold_for_crowds_of_tasks_and_of_groups"],
];

thread_local! {
    /// After how many days the test that runs in this thread has its next turn.
    static DAYS: Cell<usize> = const { Cell::new(1) };
}

/// From here on this thread runs that test. What it does in parts, it continues at its own next turn, which is not always the next day.
pub(crate) fn begin(test: &str) {
    DAYS.set(days_to_next(test));
}

/// `count` policies, others at each turn, each as often as any other. `EKIDEN_POLICIES=all` is all of them, `EKIDEN_POLICIES=wfq,cfs` those two.
pub(crate) fn some_policies(count: usize) -> Vec<&'static str> {
    let wanted = env::var("EKIDEN_POLICIES").unwrap_or_default();
    let policies = match wanted.as_str() {
        "" => today().map_or_else(|| NAMES.to_vec(), |day| policies_of(day / DAYS.get(), count)),
        "all" => NAMES.to_vec(),
        _ => named(&wanted),
    };
    println!("EKIDEN_POLICIES={}", policies.join(","));
    policies
}

/// Which of this many parts of something have this turn, counted from 0: one of them, `after` turns later the one that is next to it. `EKIDEN_TURN=2`
/// does what has that turn, and `EKIDEN_TURN=all` does all of them.
pub(crate) fn of_today(parts: usize, after: usize) -> Vec<usize> {
    println!("EKIDEN_TURN={}", today().map_or("all".to_owned(), |day| day.to_string()));
    match today() {
        None => (0..parts).collect(),
        Some(day) => vec![(day / DAYS.get() + after) % parts],
    }
}

/// The tests that have another turn than this one, of those that there are.
pub(crate) fn of_other_days(tests: &[&Test]) -> Vec<&'static str> {
    let is_test = |name: &&'static str| tests.iter().any(|test| test.name == *name);
    let missing = IN_TURNS.iter().copied().flatten().find(|name| !is_test(name));
    assert!(missing.is_none(), "IN_TURNS names {missing:?}, which is no test");
    let Some(day) = today() else { return Vec::new() };
    let others: BTreeSet<&str> =
        IN_TURNS.iter().copied().flatten().filter(|name| !has_turn(name, day)).copied().collect();
    others.into_iter().collect()
}

/// Checks that each test runs at sixty turns of its own, one after the other, and that these are enough for each policy, however many run at a turn.
pub(crate) fn each_test_has_its_turn_and_each_policy_has_one_in_it() {
    const TURNS: usize = 60;
    for test in IN_TURNS.iter().copied().flatten() {
        let days: Vec<usize> = (0..TURNS * days_to_next(test)).filter(|day| has_turn(test, *day)).collect();
        assert_eq!(days.len(), TURNS, "{test}: {days:?}");
        let own = days.iter().map(|day| day / days_to_next(test));
        assert!(own.clone().eq(0..TURNS), "{test}: {:?}", own.collect::<Vec<_>>());
    }
    for count in 1..=NAMES.len() {
        let seen: BTreeSet<&str> = (0..TURNS).flat_map(|turn| policies_of(turn, count)).collect();
        assert_eq!(seen.len(), NAMES.len(), "{count} at a time: {seen:?}");
    }
}

/// The tests that one takes turns with, itself among them.
fn line_of(test: &str) -> Option<&'static [&'static str]> {
    IN_TURNS.iter().copied().find(|tests| tests.contains(&test))
}

fn has_turn(test: &str, day: usize) -> bool {
    line_of(test).is_none_or(|tests| tests[day % tests.len()] == test)
}

fn days_to_next(test: &str) -> usize {
    line_of(test).map_or(1, |tests| tests.len() / tests.iter().filter(|other| **other == test).count())
}

/// The number of the turn, which is a number of days; none if it is that of all.
fn today() -> Option<usize> {
    let turn = env::var("EKIDEN_TURN").unwrap_or_else(|_| day().to_string());
    (turn != "all").then(|| turn.parse().expect("EKIDEN_TURN is a number, or all"))
}

fn day() -> usize {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as usize / 86_400)
}

/// The next ones begin where those of the turn before end.
fn policies_of(turn: usize, count: usize) -> Vec<&'static str> {
    let count = count.min(NAMES.len());
    (turn * count..).take(count).map(|at| NAMES[at % NAMES.len()]).collect()
}

fn named(wanted: &str) -> Vec<&'static str> {
    let find = |name: &str| NAMES.iter().find(|known| **known == name).copied();
    wanted.split(',').map(|name| find(name).unwrap_or_else(|| panic!("EKIDEN_POLICIES: no policy {name}"))).collect()
}
