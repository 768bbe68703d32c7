//! Every test that needs a stock kernel. Two of them run at a time, the longest first; each borrows a booted guest of the machine
//! that it names, and the next test that names the same machine gets the same guest. `cargo test -p ekiden-kernel-tests --test guests
//! storm` runs those with "storm" in their names; `--ignored` runs what takes hours; `--prepare` only builds what guests need.

mod agent;
mod alarms;
mod beyond;
mod commands;
mod faults;
mod generated;
mod groups;
mod hints;
mod hostile;
mod instructions;
mod kernel;
mod moves;
mod older_kernel;
mod own_policy;
mod parallel;
mod pool;
mod privileges;
mod races;
mod storm;
mod test_guest;
mod turns;
mod two_level;
mod watches;

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Trial};
use pool::{Pool, Test};

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--prepare") {
        test_guest::prepare();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // More guests than processors make each of them slower, and more than two of them need more memory than a laptop has.
    arguments.test_threads.get_or_insert(2);
    let pool = Arc::new(Pool::default());
    let files = [
        agent::TESTS,
        moves::TESTS,
        hints::TESTS,
        two_level::TESTS,
        kernel::TESTS,
        older_kernel::TESTS,
        groups::TESTS,
        beyond::TESTS,
        watches::TESTS,
        commands::TESTS,
        own_policy::TESTS,
        instructions::TESTS,
        faults::TESTS,
        generated::TESTS,
        storm::TESTS,
        parallel::TESTS,
        privileges::TESTS,
        races::TESTS,
        hostile::TESTS,
    ];
    let by_hand = [parallel::BY_HAND, groups::BY_HAND, storm::BY_HAND];
    let mut tests: Vec<&Test> = files.into_iter().chain(by_hand).flatten().collect();
    let others: &[Test] = parallel::others(&tests).into_iter().chain(alarms::tests()).collect::<Vec<_>>().leak();
    tests.extend(others);
    tests.sort_by_key(|test| std::cmp::Reverse(test.seconds));
    // A test that is asked for by name is not left for another day.
    let other_days = if arguments.filter.is_some() { Vec::new() } else { turns::of_other_days(&tests) };
    other_days.iter().for_each(|name| println!("at another turn: {name} (EKIDEN_TURN=all runs it now)"));
    let seconds: Vec<(&str, u32)> =
        tests.iter().filter(|test| !test.is_ignored).map(|test| (test.name, test.seconds)).collect();
    let guest_tests = tests.into_iter().map(|test| {
        let pool = Arc::clone(&pool);
        let is_ignored = test.is_ignored || other_days.contains(&test.name);
        Trial::test(test.name, move || pool.run(test).map_err(Into::into)).with_ignored_flag(is_ignored)
    });
    // This one needs no guest.
    let of_turns = Trial::test("each_test_has_its_turn_and_each_policy_has_one_in_it", move || {
        turns::each_test_has_its_turn_and_each_policy_has_one_in_it(&seconds);
        Ok(())
    });
    let conclusion = libtest_mimic::run(&arguments, guest_tests.chain([of_turns]).collect());
    pool.end();
    conclusion.exit_code()
}
