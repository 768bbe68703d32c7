//! The modules' sources on another stock kernel: features are found in its BTF, not by its number.

use crate::{
    beyond, kernel,
    pool::tests,
    test_guest::{Machine, TestGuest},
    turns::of_today,
};

tests! {
    Machine::Older => {
        57 policies_run_on_an_older_kernel_too,
        7 a_full_task_table_starves_no_task_on_an_older_kernel,
    }
}

fn a_full_task_table_starves_no_task_on_an_older_kernel(guest: &TestGuest) {
    beyond::fills_the_table(guest, "wfq", 2, 0.4, 500.0);
}

fn policies_run_on_an_older_kernel_too(guest: &TestGuest) {
    for policy in of_today(2, 0).into_iter().map(|turn| ["fifo", "wfq"][turn]) {
        kernel::storm(guest, &[policy]);
    }
    let reports =
        guest.guest_test("faults --modules /lab --calls pick_next_task,task_new,task_blocked,balance,reregister_init");
    assert_eq!(reports.len(), 5);
    guest.guest_test("reload --modules /lab --rounds 5");
    let report = &guest.guest_test("upgrades --modules /lab --rounds 50")[0];
    assert_eq!((&report["upgrades"], &report["still_running"]), (&50.into(), &true.into()), "{report}");
}
