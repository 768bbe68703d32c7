//! What judges whether things are right is judged on CPUs that run at once, too: twice as many as there are processors, so that each
//! loses its processor at any moment and for milliseconds. Where one stream of instructions does something a thousand times, this
//! does it less often; `EKIDEN_PARALLEL_TIMES=10` does all of it ten times as often.

use std::time::Duration;

use crate::{
    beyond, faults, generated, groups, kernel,
    pool::{Test, tests},
    test_guest::{Machine, TestGuest},
    turns::some_policies,
};

tests! {
    Machine::Parallel(4) => {
        23 in_parallel_every_fault_beside_another_policy_is_contained,
        14 in_parallel_every_fault_of_a_lone_policy_is_contained,
        27 in_parallel_generated_policies_end_or_do_no_harm,
        11 in_parallel_a_panic_in_each_call_ends_only_the_policy,
        11 in_parallel_policies_take_over_from_each_other,
        26 in_parallel_modules_load_run_and_unload,
        127 in_parallel_policies_live_through_a_storm,
        13 in_parallel_what_policies_did_is_replayed,
        14 in_parallel_a_policy_that_panics_goes_alone,
        10 in_parallel_several_policies_come_and_go,
        32 in_parallel_policies_come_are_ordered_and_leave,
        11 in_parallel_no_task_is_sent_to_a_cpu_that_is_away,
        4 in_parallel_groups_are_replayed,
        5 in_parallel_no_task_waits_for_one_without_time,
        23 in_parallel_a_full_task_table_starves_no_task,
        16 in_parallel_versions_take_over,
        5 in_parallel_the_flight_recorder_is_saved,
    }
}

/// What `make nightly` does besides.
pub(crate) const BY_HAND: &[Test] = &[Test {
    name: "ten_minutes_on_cpus_that_run_at_once_are_replayed_without_a_difference",
    machine: Machine::Parallel(4),
    seconds: 1_200,
    is_ignored: true,
    run: &ten_minutes_on_cpus_that_run_at_once_are_replayed_without_a_difference,
}];

/// What judges a cost or a share, for which CPUs need turns of the same length; what is drawn for two CPUs; and what is above with less of everything.
const OF_ONE_STREAM: &[&str] = &[
    "a_cpu_that_was_away_does_what_it_is_asked_whatever_was_wanted_when_it_left",
    "a_new_version_takes_over_the_state_if_its_layout_is_the_same",
    "a_panic_in_each_call_of_the_trait_ends_only_the_policy",
    "a_panic_in_the_busiest_call_is_contained_twenty_times_in_one_boot",
    "a_policy_that_panics_beside_another_goes_alone_and_its_tasks_go_on",
    "a_policy_that_takes_over_and_panics_ends_alone",
    "a_task_that_was_picked_and_may_not_run_there_any_more_waits_elsewhere",
    "a_user_who_fills_the_task_table_takes_no_cpu_from_others",
    "a_version_of_another_layout_goes_on_with_what_was_saved_for_it",
    "all_leaves_while_timers_start_each_other",
    "an_agent_that_ends_in_any_way_gives_every_task_back_soon",
    "every_fault_of_the_list_is_contained_on_four_cpus",
    "every_fault_of_the_list_is_contained_on_two_cpus",
    "every_policy_lives_in_an_agent_and_no_task_is_lost",
    "generated_policies_end_with_a_reason_or_do_no_harm_on_four_cpus",
    "limits_are_exact_whatever_their_period_is",
    "limits_hold_for_crowds_of_tasks_and_of_groups",
    "limits_of_a_hundred_groups_cost_next_to_nothing",
    "modules_load_run_and_unload_again_and_again",
    "no_task_waits_for_a_lock_of_a_task_that_has_used_up_its_time",
    "policies_come_are_ordered_and_leave_and_nothing_is_refused",
    "policies_get_the_cpus_and_the_shares_that_they_were_given",
    "policies_live_beside_a_hostile_neighbour",
    "policies_live_through_a_storm_and_no_task_is_lost",
    "policies_send_no_task_to_a_cpu_that_is_away",
    "policies_take_over_from_each_other_a_thousand_times_and_no_task_is_lost",
    "several_policies_share_the_machine_and_come_and_go",
    "shares_and_limits_of_control_groups_hold_under_a_policy",
    "shares_and_limits_of_control_groups_hold_under_every_policy",
    "the_page_of_a_finding_and_top_show_who_waited_where_and_which_cpu_was_idle",
    "the_last_calls_of_a_policy_that_panics_are_saved_and_panic_again",
    "wfq_and_eevdf_pass_the_tests_of_the_appendix_that_the_simulator_passes",
    "what_a_policy_did_with_tasks_of_limited_groups_is_replayed_without_a_difference",
    "what_policies_did_in_the_kernel_is_replayed_without_a_difference",
];

/// The other tests of those that have turns, on CPUs that run at once; `make nightly` runs them.
pub(crate) fn others(of_all: &[&'static Test]) -> Vec<Test> {
    for name in OF_ONE_STREAM {
        assert!(of_all.iter().any(|test| test.name == *name), "OF_ONE_STREAM names {name}, which is no test");
    }
    let has_turns = |test: &&&Test| {
        matches!(
            test.machine,
            Machine::Newest(2 | 4) | Machine::Calm | Machine::Crowded | Machine::Storm | Machine::Checked
        ) && !OF_ONE_STREAM.contains(&test.name)
    };
    let in_parallel = |test: &&'static Test| Test {
        name: format!("{}_in_parallel", test.name).leak(),
        machine: match test.machine {
            Machine::Checked => Machine::ParallelChecked,
            _ => Machine::Parallel(4),
        },
        seconds: 2 * test.seconds,
        is_ignored: true,
        run: test.run,
    };
    of_all.iter().filter(has_turns).map(in_parallel).collect()
}

fn times() -> usize {
    std::env::var("EKIDEN_PARALLEL_TIMES").map_or(1, |times| times.parse().expect("it is a number"))
}

// In parts: each policy is loaded and leaves, in which QEMU may break its guest, and then a part begins anew and not all.

fn in_parallel_every_fault_beside_another_policy_is_contained(guest: &TestGuest) {
    faults::todays_third_is_contained(guest, 36, true, 0);
}

fn in_parallel_every_fault_of_a_lone_policy_is_contained(guest: &TestGuest) {
    faults::todays_third_is_contained(guest, 36, false, 1);
}

fn in_parallel_generated_policies_end_or_do_no_harm(guest: &TestGuest) {
    generated::todays_third_ends_or_does_no_harm(guest, 1);
}

fn in_parallel_a_panic_in_each_call_ends_only_the_policy(guest: &TestGuest) {
    kernel::each_call_panics(guest, times());
}

fn in_parallel_policies_take_over_from_each_other(guest: &TestGuest) {
    kernel::upgrade(guest, 100 * times() as u64);
}

fn in_parallel_modules_load_run_and_unload(guest: &TestGuest) {
    kernel::reload(guest, 10 * times());
}

fn in_parallel_policies_live_through_a_storm(guest: &TestGuest) {
    for _ in 0..times() {
        kernel::storm(guest, &some_policies(6));
    }
}

fn in_parallel_what_policies_did_is_replayed(guest: &TestGuest) {
    for _ in 0..times() {
        kernel::what_policies_did_in_the_kernel_is_replayed_without_a_difference(guest);
    }
}

/// `EKIDEN_RECORD_MINUTES` does it for another time, `EKIDEN_POLICIES` with other policies.
fn ten_minutes_on_cpus_that_run_at_once_are_replayed_without_a_difference(guest: &TestGuest) {
    let minutes = std::env::var("EKIDEN_RECORD_MINUTES").map_or(10, |minutes| minutes.parse().expect("it is a number"));
    let policies = if std::env::var("EKIDEN_POLICIES").is_ok() { some_policies(1) } else { vec!["wfq"] };
    for policy in policies {
        let guest_test = format!("recorded --policy {policy} --seconds {}", 60 * minutes);
        let report = kernel::is_replayed_without_a_difference(
            guest,
            policy,
            &guest_test,
            Duration::from_secs(60 * minutes + 900),
        );
        assert!(report["took_ms"].as_u64() >= Some(60_000 * minutes), "{report}");
    }
}

fn in_parallel_a_policy_that_panics_goes_alone(guest: &TestGuest) {
    kernel::a_policy_that_panics_beside_another_goes_alone_and_its_tasks_go_on(guest);
}

fn in_parallel_several_policies_come_and_go(guest: &TestGuest) {
    kernel::several_policies_share_the_machine_and_come_and_go(guest);
}

fn in_parallel_policies_come_are_ordered_and_leave(guest: &TestGuest) {
    kernel::comings(guest, 20 * times() as u64);
}

fn in_parallel_no_task_is_sent_to_a_cpu_that_is_away(guest: &TestGuest) {
    kernel::a_cpu_that_was_away_does_what_it_is_asked_whatever_was_wanted_when_it_left(guest);
    kernel::no_task_is_sent_away(guest);
}

/// Without what is tested, for nearly a second.
fn in_parallel_no_task_waits_for_one_without_time(guest: &TestGuest) {
    groups::waits_for_a_lock(guest, 300);
}

fn in_parallel_a_full_task_table_starves_no_task(guest: &TestGuest) {
    for policy in ["wfq", "fifo"] {
        // Shares go by ticks, of which a processor that is away has none: exact ones are judged where CPUs have turns.
        beyond::fills_the_table(guest, policy, 4, 0.22, 4_000.0);
    }
}

fn in_parallel_groups_are_replayed(guest: &TestGuest) {
    groups::what_a_policy_did_with_tasks_of_limited_groups_is_replayed_without_a_difference(guest);
}

fn in_parallel_versions_take_over(guest: &TestGuest) {
    kernel::a_new_version_takes_over_the_state_if_its_layout_is_the_same(guest);
    kernel::a_version_of_another_layout_goes_on_with_what_was_saved_for_it(guest);
    kernel::a_policy_that_takes_over_and_panics_ends_alone(guest);
}

fn in_parallel_the_flight_recorder_is_saved(guest: &TestGuest) {
    kernel::the_last_calls_of_a_policy_that_panics_are_saved_and_panic_again(guest);
    kernel::recording_is_switched_off_and_on_while_a_policy_runs(guest);
}
