//! Whose turn it is in tests that every policy has to pass, where a run has no time for all.

use std::{
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use ekiden_policies::NAMES;

/// So many policies, others each day, each as often as any other. `EKIDEN_POLICIES=all` is all of them, `EKIDEN_POLICIES=wfq,cfs` those two.
pub(crate) fn some_policies(count: usize) -> Vec<&'static str> {
    let wanted = env::var("EKIDEN_POLICIES").unwrap_or_default();
    let policies = match wanted.as_str() {
        "" => turn(day(), count),
        "all" => NAMES.to_vec(),
        _ => named(&wanted),
    };
    println!("EKIDEN_POLICIES={}", policies.join(","));
    policies
}

/// Which of so many parts of something are done today, counted from 0: one of them, in `after` days the one that is next to it. `EKIDEN_TURN=2`
/// does what is done on that day, and `EKIDEN_TURN=all` does all of them.
pub(crate) fn of_today(parts: usize, after: usize) -> Vec<usize> {
    let turn = env::var("EKIDEN_TURN").unwrap_or_else(|_| day().to_string());
    println!("EKIDEN_TURN={turn}");
    match turn.as_str() {
        "all" => (0..parts).collect(),
        turn => vec![(turn.parse::<usize>().expect("EKIDEN_TURN is a number, or all") + after) % parts],
    }
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
