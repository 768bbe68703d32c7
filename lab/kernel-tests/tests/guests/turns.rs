//! The policies that have a turn in tests that every policy has to pass, where a run has no time for all.

use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use ekiden_policies::NAMES;

use crate::pool::Test;

/// What takes long and is judged in both kinds of machine, in that of one stream of instructions and in that whose CPUs run at once: one of the
/// two runs at this turn and the other at the next, of neighbours in this list not in the same kind.
const IN_BOTH_MACHINES: [[&str; 2]; 7] = [
    ["policies_live_beside_a_hostile_neighbour", "in_parallel_policies_live_beside_a_hostile_neighbour"],
    ["modules_load_run_and_unload_again_and_again", "in_parallel_modules_load_run_and_unload"],
    ["policies_live_through_a_storm_and_no_task_is_lost", "in_parallel_policies_live_through_a_storm"],
    [
        "an_agent_that_ends_in_any_way_gives_every_task_back_soon",
        "in_parallel_an_agent_that_ends_gives_every_task_back",
    ],
    ["all_leaves_while_timers_start_each_other", "in_parallel_all_leaves_while_timers_start_each_other"],
    ["every_policy_lives_in_an_agent_and_no_task_is_lost", "in_parallel_every_policy_lives_in_an_agent"],
    ["policies_come_are_ordered_and_leave_and_nothing_is_refused", "in_parallel_policies_come_are_ordered_and_leave"],
];

/// `count` policies, others at each turn, each as often as any other. `EKIDEN_POLICIES=all` is all of them, `EKIDEN_POLICIES=wfq,cfs` those two.
pub(crate) fn some_policies(count: usize) -> Vec<&'static str> {
    let wanted = env::var("EKIDEN_POLICIES").unwrap_or_default();
    let policies = match wanted.as_str() {
        "" => today().map_or_else(|| NAMES.to_vec(), |day| turn(day, count)),
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
        Some(day) => vec![(day + after) % parts],
    }
}

/// The tests that have the next turn, of those that there are.
pub(crate) fn of_tomorrow(tests: &[&Test]) -> Vec<&'static str> {
    let is_test = |name: &&&str| tests.iter().any(|test| test.name == **name);
    let missing = IN_BOTH_MACHINES.iter().flatten().find(|name| !is_test(name));
    assert!(missing.is_none(), "IN_BOTH_MACHINES names {missing:?}, which is no test");
    let Some(day) = today() else { return Vec::new() };
    IN_BOTH_MACHINES.iter().enumerate().map(|(at, names)| names[(day + at + 1) % 2]).collect()
}

/// The number of the turn, which is a number of days; none if it is that of all.
fn today() -> Option<usize> {
    let turn = env::var("EKIDEN_TURN").unwrap_or_else(|_| day().to_string());
    (turn != "all").then(|| turn.parse().expect("EKIDEN_TURN is a number, or all"))
}

fn day() -> usize {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as usize / 86_400)
}

/// The next ones begin where those of the day before end.
fn turn(day: usize, count: usize) -> Vec<&'static str> {
    let count = count.min(NAMES.len());
    (day * count..).take(count).map(|at| NAMES[at % NAMES.len()]).collect()
}

fn named(wanted: &str) -> Vec<&'static str> {
    let find = |name: &str| NAMES.iter().find(|known| **known == name).copied();
    wanted.split(',').map(|name| find(name).unwrap_or_else(|| panic!("EKIDEN_POLICIES: no policy {name}"))).collect()
}
