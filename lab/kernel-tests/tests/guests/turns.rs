//! What has a turn where a run has no time for all: tests, the policies that a test is about, parts of what it does.

use std::{
    cell::Cell,
    collections::BTreeSet,
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use ekiden_policies::NAMES;

use crate::pool::Test;

/// After so many turns each test has run.
const TURNS: usize = 6;

/// At which turns of [`TURNS`] tests run that are too long for each of them: what takes more than half a minute, and what is judged in both kinds of
/// machine, in that of one stream of instructions and in that whose CPUs run at once, the one kind at other turns than the other. Lines are such that
/// all turns take about as long.
const IN_TURNS: &[(&[usize], &[&str])] = &[
    (
        &[0],
        &[
            "in_parallel_every_policy_lives_in_an_agent",
            "in_parallel_modules_load_run_and_unload",
            "policies_live_beside_a_hostile_neighbour",
            "policies_live_through_a_storm_of_everything_at_once",
        ],
    ),
    (
        &[1],
        &[
            "a_policy_moves_between_an_agent_and_the_kernel_and_no_task_is_lost",
            "in_parallel_all_leaves_while_timers_start_each_other",
            "in_parallel_policies_live_through_a_storm",
            "no_task_of_a_crowd_waits_longer_because_the_table_has_no_room",
        ],
    ),
    (
        &[2],
        &[
            "an_agent_that_ends_in_any_way_gives_every_task_back_soon",
            "every_fault_of_the_list_is_contained_on_four_cpus",
            "policies_come_are_ordered_and_leave_and_nothing_is_refused",
        ],
    ),
    (
        &[3],
        &[
            "every_policy_lives_in_an_agent_and_no_task_is_lost",
            "in_parallel_policies_live_beside_a_hostile_neighbour",
            "modules_load_run_and_unload_again_and_again",
        ],
    ),
    (
        &[4],
        &[
            "all_leaves_while_timers_start_each_other",
            "in_parallel_a_policy_moves_between_an_agent_and_the_kernel",
            "policies_live_through_a_storm_and_no_task_is_lost",
            "policies_of_ones_own_run_take_over_and_are_recorded_and_measured",
            "what_cannot_move_stays_where_it_is",
        ],
    ),
    (
        &[5],
        &[
            "in_parallel_an_agent_that_ends_gives_every_task_back",
            "in_parallel_every_fault_beside_another_policy_is_contained",
            "in_parallel_policies_come_are_ordered_and_leave",
            "policies_run_on_an_older_kernel_too",
            "the_device_lives_through_whatever_it_is_asked",
        ],
    ),
    (
        &[0, 3],
        &[
            "generated_policies_end_with_a_reason_or_do_no_harm_on_one_cpu",
            "a_server_is_given_more_cpus_by_the_arbiter_while_clients_want_more",
            "a_user_who_fills_the_task_table_takes_no_cpu_from_others",
            "an_agent_with_room_for_few_messages_works",
            "in_parallel_a_panic_in_each_call_ends_only_the_policy",
            "in_parallel_a_picked_task_that_may_not_run_there_any_more_waits_elsewhere",
            "in_parallel_a_policy_that_panics_goes_alone",
            "in_parallel_every_fault_of_a_lone_policy_is_contained",
            "in_parallel_policies_take_over_from_each_other",
            "in_parallel_what_policies_did_is_replayed",
            "policies_take_over_from_each_other_in_an_agent",
            "schedulers_that_balance_are_not_accused",
            "wfq_and_eevdf_pass_the_tests_of_the_appendix_that_the_simulator_passes",
        ],
    ),
    (
        &[1, 4],
        &[
            "a_panic_in_each_call_of_the_trait_ends_only_the_policy",
            "every_fault_of_the_list_is_contained_on_one_cpu",
            "generated_policies_end_with_a_reason_or_do_no_harm_on_four_cpus",
            "in_parallel_a_full_task_table_starves_no_task",
            "in_parallel_policies_take_over_from_each_other_in_an_agent",
            "limits_hold_for_crowds_of_tasks_and_of_groups",
            "policies_take_over_from_each_other_a_thousand_times_and_no_task_is_lost",
            "shares_and_limits_of_control_groups_hold_under_every_policy",
            "what_policies_did_in_the_kernel_is_replayed_without_a_difference",
        ],
    ),
    (
        &[2, 5],
        &[
            "a_call_that_asks_about_each_of_many_tasks_is_no_loop",
            "a_policy_that_panics_beside_another_goes_alone_and_its_tasks_go_on",
            "a_policy_that_panics_ends_alone_while_every_return_is_traced",
            "a_task_that_was_picked_and_may_not_run_there_any_more_waits_elsewhere",
            "an_interrupt_is_short_whatever_crowds_are_limited",
            "in_parallel_generated_policies_end_or_do_no_harm",
            "in_parallel_versions_take_over",
            "limits_and_weights_of_control_groups_hold_in_an_agent",
            "limits_of_a_hundred_groups_cost_next_to_nothing",
            "what_a_policy_notes_stands_in_recordings_of_a_kernel_and_of_an_agent",
        ],
    ),
];

thread_local! {
    /// At which turns of [`TURNS`] the test runs that this thread runs.
    static RUNS_AT: Cell<&'static [usize]> = const { Cell::new(&EACH) };
}

/// The turns of a test that is not in [`IN_TURNS`].
const EACH: [usize; TURNS] = [0, 1, 2, 3, 4, 5];

/// From here on this thread runs that test. What it does in parts, it continues at its own next turn, which is not always the next day.
pub(crate) fn begin(test: &str) {
    RUNS_AT.set(turns_of(test));
}

/// `count` policies, others at each turn, each as often as any other. `EKIDEN_POLICIES=all` is all of them, `EKIDEN_POLICIES=wfq,cfs` those two.
pub(crate) fn some_policies(count: usize) -> Vec<&'static str> {
    let wanted = env::var("EKIDEN_POLICIES").unwrap_or_default();
    let policies = match wanted.as_str() {
        "" => today().map_or_else(|| NAMES.to_vec(), |day| policies_of(nth_turn(RUNS_AT.get(), day), count)),
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
        Some(day) => vec![(nth_turn(RUNS_AT.get(), day) + after) % parts],
    }
}

/// The tests that have another turn than this one, of those that there are.
pub(crate) fn of_other_days(tests: &[&Test]) -> Vec<&'static str> {
    let is_test = |name: &&'static str| tests.iter().any(|test| test.name == *name);
    let missing = in_turns().find(|name| !is_test(name));
    assert!(missing.is_none(), "IN_TURNS names {missing:?}, which is no test");
    let Some(day) = today() else { return Vec::new() };
    in_turns().filter(|name| !turns_of(name).contains(&(day % TURNS))).collect()
}

/// Checks that a test at its turns does one part after the other of what it does in parts, that this reaches each policy, however many run at a turn,
/// and that no turn takes much longer than the others.
pub(crate) fn each_test_has_its_turn_and_each_policy_has_one_in_it(tests: &[(&str, u32)]) {
    const DAYS: usize = 60 * TURNS;
    for test in in_turns() {
        let runs_at = turns_of(test);
        let days = (0..DAYS).filter(|day| runs_at.contains(&(day % TURNS)));
        assert!(days.map(|day| nth_turn(runs_at, day)).eq(0..DAYS / TURNS * runs_at.len()), "{test}: {runs_at:?}");
    }
    for count in 1..=NAMES.len() {
        let seen: BTreeSet<&str> = (0..60).flat_map(|turn| policies_of(turn, count)).collect();
        assert_eq!(seen.len(), NAMES.len(), "{count} at a time: {seen:?}");
    }
    let seconds = |turn: usize| {
        let of_turn = tests.iter().filter(|(test, _)| turns_of(test).contains(&turn));
        of_turn.map(|(_, seconds)| f64::from(*seconds)).sum::<f64>()
    };
    let all: Vec<f64> = (0..TURNS).map(seconds).collect();
    let mean = all.iter().sum::<f64>() / TURNS as f64;
    assert!(all.iter().all(|turn| (turn / mean - 1.0).abs() < 0.15), "seconds of each turn: {all:?}");
}

fn in_turns() -> impl Iterator<Item = &'static str> {
    IN_TURNS.iter().flat_map(|(_, tests)| tests.iter().copied())
}

fn turns_of(test: &str) -> &'static [usize] {
    IN_TURNS.iter().find(|(_, tests)| tests.contains(&test)).map_or(&EACH, |(turns, _)| turns)
}

/// How many turns a test has had before, by the turns of [`TURNS`] at which it runs.
fn nth_turn(runs_at: &[usize], day: usize) -> usize {
    day / TURNS * runs_at.len() + runs_at.iter().filter(|turn| **turn < day % TURNS).count()
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
