//! The functions that the C half calls, called as it calls them.

use core::ptr;
use std::{panic, string::String, vec, vec::Vec};

use ekiden::Calls;
use ekiden_host::abi::{Call, EventKind, Message, Reply};
use ekiden_host::{Host, Policy};

use super::*;
use crate::kernel_fakes::{ASKED, GUARD_SAYS, LOOK_SAYS, REFUSES, Running, TABLE, args, without_engine};

const NO_ENGINE: i64 = -19;
const INVALID: i64 = -22;

#[test]
fn without_an_engine_every_question_has_an_answer() {
    let _turn = without_engine();
    let mut outcome = Outcome::default();
    let event = Event::new(EventKind::Pick, 0);
    // SAFETY: all pointers are good for the calls, or null where no bytes are said to be there.
    unsafe {
        assert_eq!(ekiden_rs_deliver(&event, &mut outcome, [].as_ptr(), 0), 0);
        assert_eq!(outcome.status, Status::Fault as i32, "tasks are handed back to the kernel");
        assert_eq!(ekiden_rs_come(&TABLE, ptr::null_mut()), NO_ENGINE);
        assert_eq!((ekiden_rs_leave(0), ekiden_rs_has_left(0)), (NO_ENGINE, 0));
        assert_eq!(ekiden_rs_swap(0, &TABLE, ptr::null_mut(), ptr::null_mut(), &mut outcome), NO_ENGINE);
        assert_eq!(ekiden_rs_reorder([0].as_ptr(), 1), INVALID);
        let request = ShareRequest { cpus: 0, cpus_len: 0, policy_slot: 0, weight: 1, flags: 0 };
        assert_eq!(ekiden_rs_share(&request, ptr::null()), NO_ENGINE);
        assert_eq!(ekiden_rs_has_come(0, 1, &mut outcome), 0);
        assert_eq!(ekiden_rs_all_see(&mut outcome), 0);
        assert_eq!(ekiden_rs_introduce(5, &mut outcome), 0);
        assert_eq!(ekiden_rs_find_starved(1, 1, 1, 5, &mut outcome), 0);
        assert_eq!(ekiden_rs_save(0, 0, ptr::null_mut(), 0), 0);
        assert_eq!(ekiden_rs_figures(0, 0, ptr::null_mut(), 0), 0);
        assert_eq!(ekiden_rs_take_idle(0, [u64::MAX].as_ptr(), 1, ptr::null(), 0), 0);
        let mut words = [u64::MAX; 2];
        ekiden_rs_idle_cpus(words.as_mut_ptr(), words.len());
        assert_eq!(words, [0; 2], "no CPU is idle for a policy that is not there");
    }
    assert_eq!(ekiden_rs_choose(1, 1, 0, 0), -2);
    assert_eq!((ekiden_rs_order(), ekiden_rs_default(), ekiden_rs_calls(), ekiden_rs_task_count()), (0, 0, 0, 0));
    assert!(!ekiden_rs_is_alive(0) && !ekiden_rs_any_alive() && !ekiden_rs_begin_several());
    assert!(!ekiden_rs_chooses_cpu(1) && ekiden_rs_host_task(1).is_null());
    assert_eq!((ekiden_rs_check(0, 1), ekiden_rs_faulted(0)), (INVALID, 0));
    assert_eq!(ekiden_rs_claim(1, 1, 0), ekiden::RefusalReason::Gone as u32);
    assert_eq!(ekiden_rs_weight_of_running(1, 0), 0);
    assert_eq!(ekiden_rs_group(1), u64::from(Group::ROOT.id) << 32 | u64::from(Group::ROOT.weight));
    ekiden_rs_silence();
}

#[test]
fn a_policy_that_refuses_leaves_no_engine_and_its_reason() {
    let _turn = without_engine();
    let (mut args, memory) = (args(4), vec![0_u8; 4096].leak());
    REFUSES.set(true);
    // SAFETY: no engine runs, by the turn; the memory is leaked.
    let done = unsafe { ekiden_rs_create(&TABLE, &mut args, memory.as_mut_ptr(), memory.len(), 2) };
    REFUSES.set(false);
    assert_eq!(done, INVALID);
    assert_eq!(&args.error[..args.error_len as usize], b"not today");
    assert!(engine().is_none());
}

#[test]
fn a_task_runs_by_the_name_that_the_host_gave_it_until_it_leaves() {
    let running = Running::on(2, 8);
    let task = running.task(0xabc0);
    assert_eq!(ekiden_rs_task_count(), 1);
    assert_eq!(ekiden_rs_host_task(task.to_bits()) as usize, 0xabc0);
    running.wake(task, 0);
    let picked = running.pick(0);
    assert_eq!((picked.status, picked.host_task, picked.task), (Status::Run as i32, 0xabc0, task));
    assert_eq!(
        (ekiden_rs_weight_of_running(task.to_bits(), 0), ekiden_rs_weight_of_running(task.to_bits(), 1)),
        (1024, 0)
    );
    running.deliver(Event { task, ..Event::new(EventKind::TaskExit, 0) }, &[]);
    assert_eq!((ekiden_rs_task_count(), ekiden_rs_host_task(task.to_bits())), (0, ptr::null()));
    let again = running.task(0xdef0);
    assert_ne!(again, task);
    assert!(ekiden_rs_host_task(task.to_bits()).is_null(), "an old id is not that of a task in the same place");
}

#[test]
fn the_kernel_is_asked_about_tasks_that_are_there_and_no_others() {
    let running = Running::on(70, 8);
    let task = running.task(0xabc0);
    assert!(Kernel.may_run(task, 2) && !Kernel.may_run(task, 3));
    assert_eq!(ASKED.replace(0), 0xabc0);
    let mut cpus = CpuMask::new();
    Kernel.allowed_cpus(task, &mut cpus);
    assert_eq!(ASKED.replace(0), 0xabc0);
    assert_eq!(cpus.as_words().len(), 2, "there is room for each CPU");
    assert!(cpus.contains(68) && !cpus.contains(69));
    let gone = TaskId { generation: task.generation + 1, ..task };
    assert!(!Kernel.may_run(gone, 2));
    Kernel.allowed_cpus(gone, &mut cpus);
    assert!(cpus.is_empty(), "a task that is gone may run nowhere, whatever was in the set");
    assert_eq!(ASKED.get(), 0, "the kernel never gets an address that is none");
}

#[test]
fn idle_cpus_fill_the_words_that_there_are_and_clear_the_rest() {
    let running = Running::on(70, 8);
    for cpu in [0, 3, 69] {
        assert_eq!(running.pick(cpu).status, Status::Done as i32, "there is nothing to run");
    }
    for (len, expected) in [(0, vec![]), (1, vec![0b1001]), (2, vec![0b1001, 1 << 5]), (4, vec![0b1001, 1 << 5, 0, 0])]
    {
        let mut words = vec![u64::MAX; 4];
        // SAFETY: there is room for this many words.
        unsafe { ekiden_rs_idle_cpus(words.as_mut_ptr(), len) };
        assert_eq!(words[..len], expected);
        assert!(words[len..].iter().all(|word| *word == u64::MAX), "nothing is written behind the room of {len}");
    }
}

#[test]
fn an_idle_cpu_is_taken_once_where_all_sets_and_the_kernel_allow_it() {
    let running = Running::on(70, 8);
    let task = running.task(0xabc0).to_bits();
    for cpu in [1, 2, 4, 68] {
        running.pick(cpu);
    }
    let take = |allowed: &[u64], among: Option<&[u64]>| {
        let (first, len) = among.map_or((ptr::null(), 0), |among| (among.as_ptr(), among.len()));
        // SAFETY: there are as many words as is said.
        unsafe { ekiden_rs_take_idle(task, allowed.as_ptr(), allowed.len(), first, len) }
    };
    let all = [u64::MAX; 2];
    assert_eq!(take(&[0b0010, 0], None), 0, "the kernel does not let it run on CPU 1");
    assert_eq!(take(&all, Some(&[0, 0])), 0);
    assert_eq!(take(&all[..1], Some(&[0, u64::MAX])), 0, "CPUs beyond a set are not in it");
    assert_eq!(take(&all, Some(&[0, u64::MAX])), 69);
    assert_eq!([take(&all, None), take(&all, None), take(&all, None)], [3, 5, 0]);
}

#[test]
fn policies_come_in_an_order_that_can_be_changed_and_read() {
    let running = Running::on(2, 8);
    let _ = &running;
    assert_eq!((ekiden_rs_order(), ekiden_rs_default()), (1, 0));
    ekiden_rs_begin_several();
    let mut outcome = Outcome::default();
    // SAFETY: instances come from the table, which is static; the outcome is good for the calls.
    let policy_slots: Vec<i64> =
        (1..POLICY_SLOTS).map(|_| unsafe { ekiden_rs_come(&TABLE, (TABLE.create)(&mut args(8))) }).collect();
    assert_eq!(policy_slots, (1..POLICY_SLOTS as i64).collect::<Vec<_>>());
    // SAFETY: one more instance of the static table, which no engine takes.
    assert_eq!(unsafe { ekiden_rs_come(&TABLE, (TABLE.create)(&mut args(8))) }, -7, "there is no policy slot left");
    for policy_slot in policy_slots {
        // SAFETY: the outcome is on this stack.
        unsafe { ekiden_rs_has_come(policy_slot as u64, 0, &mut outcome) };
    }
    let order: Vec<u8> =
        ekiden_rs_order().to_le_bytes().into_iter().take_while(|policy_slot| *policy_slot != 0).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=POLICY_SLOTS as u8).collect::<Vec<_>>(), "each policy slot is there once, counted from 1");
    let turned: Vec<u8> = order.iter().rev().map(|policy_slot| policy_slot - 1).collect();
    // SAFETY: the order is as long as is said.
    let reorder = |policy_slots: &[u8]| unsafe { ekiden_rs_reorder(policy_slots.as_ptr(), policy_slots.len()) };
    assert_eq!(reorder(&turned), 0);
    let now: Vec<u8> = ekiden_rs_order().to_le_bytes()[..POLICY_SLOTS].to_vec();
    assert_eq!(now, order.iter().rev().copied().collect::<Vec<_>>());
    for wrong in [&turned[1..], &[0; POLICY_SLOTS], &[0; POLICY_SLOTS + 1], &[255; POLICY_SLOTS], &[]] {
        assert_eq!(reorder(wrong), INVALID, "{wrong:?}");
    }
    assert_eq!(ekiden_rs_order().to_le_bytes()[..POLICY_SLOTS], now[..], "an order that is refused changes nothing");
}

#[test]
fn what_is_asked_of_policy_slots_tasks_and_checks_that_do_not_exist_is_refused() {
    let running = Running::on(2, 8);
    let task = running.task(0xabc0).to_bits();
    assert_eq!((ekiden_rs_choose(task, 1, 0, 0), ekiden_rs_choose(task, 0, 0, 0)), (0, 0));
    assert_eq!(ekiden_rs_choose(task, 2, 0, 0), -2);
    assert_eq!(ekiden_rs_choose(task, u64::MAX, 0, 0), -2);
    assert_eq!(ekiden_rs_choose(task ^ 1 << 40, 1, 0, 0), -3);
    assert_eq!((ekiden_rs_choose(task, 1, 1, 1), ekiden_rs_choose(task, 1, 0, 0)), (0, -13), "root has chosen");
    assert_eq!((ekiden_rs_check(0, 2), ekiden_rs_check(0, 4), ekiden_rs_check(1, 1)), (0, INVALID, INVALID));
    assert_eq!(ekiden_rs_check(POLICY_SLOTS as u64 + 1, 1), INVALID);
    assert!(ekiden_rs_is_alive(0) && !ekiden_rs_is_alive(1) && !ekiden_rs_is_alive(u64::MAX));
    let share = |policy_slot, weight| {
        let request = ShareRequest { cpus: 0, cpus_len: 1, policy_slot, weight, flags: 1 };
        // SAFETY: `cpus_len` is 1, and the array has one word.
        unsafe { ekiden_rs_share(&request, [3].as_ptr()) }
    };
    assert_eq!((share(0, 100), share(1, 100), share(POLICY_SLOTS as u32, 100)), (0, INVALID, INVALID));
}

#[test]
fn a_policy_whose_guard_says_that_it_did_not_return_has_faulted() {
    // SAFETY: the table is static, and the instance its own.
    let policy = unsafe { ModulePolicy::made(&TABLE, (TABLE.create)(&mut args(1))) };
    let message = Message { token_serial: 9, ..Message::about_cpu(Call::TaskNew, 0) };
    assert_eq!(policy.deliver(&message, &[]), Reply::default());
    GUARD_SAYS.set(-1);
    assert!(policy.deliver(&message, &[]).has_faulted(), "and what it may have written is not looked at");
    GUARD_SAYS.set(0);
    let picked = policy.deliver(&Message::about_cpu(Call::PickNextTask, 0), &[]);
    assert_eq!(picked.token.serial, 9);
    assert_eq!((policy.calls(), policy.params_declared()), (Calls(TABLE.calls), 7));
}

#[test]
fn one_that_has_left_answers_nothing_and_the_next_in_its_policy_slot_does() {
    let running = Running::on(2, 8);
    let come = || {
        ekiden_rs_begin_several();
        // SAFETY: the table is static, and the instance its own; no call is under way.
        let policy_slot = unsafe { ekiden_rs_come(&TABLE, (TABLE.create)(&mut args(8))) };
        // SAFETY: the outcome is on this stack.
        unsafe { ekiden_rs_has_come(policy_slot as u64, 1, &mut Outcome::default()) };
        policy_slot
    };
    let introduce = || {
        // SAFETY: the outcome is on this stack, and there is one scan at a time.
        assert_eq!(unsafe { ekiden_rs_introduce(0, &mut Outcome::default()) }, 0, "there are few tasks");
    };
    assert_eq!(come(), 1);
    let task = running.task(0xabc0);
    running.wake(task, 0);
    for _ in 0..2 {
        assert_eq!(ekiden_rs_leave(ekiden_rs_default()), 0);
        introduce();
        let left = running.pick(0);
        assert_eq!((left.status, left.task), (Status::Run as i32, task), "the one that stays has it");
        running.wake(task, 0);
        assert_eq!(ekiden_rs_has_left(1), 0);
        introduce();
        assert_eq!((ekiden_rs_order(), ekiden_rs_default()), (1, 0));
        assert_eq!(come(), 1, "the policy slot is free");
        introduce();
    }
    assert_eq!(running.pick(0).task, task);
}

#[test]
fn nobody_answers_where_one_has_left_until_another_one_follows() {
    // SAFETY: the table is static, and the instances are its own; no call is under way.
    let [policy, next] = [(); 2].map(|()| unsafe { ModulePolicy::made(&TABLE, (TABLE.create)(&mut args(1))) });
    let waits = Message { token_serial: 9, ..Message::about_cpu(Call::TaskNew, 0) };
    let pick = Message::about_cpu(Call::PickNextTask, 0);
    let picked = || policy.deliver(&pick, &[]).token.serial;
    policy.deliver(&waits, &[]);
    policy.leave();
    assert_eq!(picked(), 0, "it is not called");
    next.deliver(&Message { token_serial: 7, ..waits }, &[]);
    assert!(policy.follow(next).is_ok());
    assert_eq!((picked(), policy.params_declared()), (7, 7), "the next one has its own memory");
}

#[test]
fn a_successor_is_the_one_that_was_made_or_gets_the_state_of_the_old_one() {
    let waits = Message { token_serial: 9, ..Message::about_cpu(Call::TaskNew, 0) };
    for is_made in [false, true] {
        // SAFETY: the table is static, and the instances come from it.
        let next = unsafe {
            let policy = ModulePolicy::made(&TABLE, (TABLE.create)(&mut args(1)));
            policy.deliver(&waits, &[]);
            let made = if is_made { (TABLE.create)(&mut args(1)) } else { ptr::null_mut() };
            policy.succeed(&TABLE, &mut args(1), made)
        };
        let picked = next.deliver(&Message::about_cpu(Call::PickNextTask, 0), &[]);
        assert_eq!(picked.token.serial, if is_made { 0 } else { 9 });
    }
}

#[test]
fn rooms_and_cpus_reach_the_policy_as_they_are() {
    let running = Running::on(2, 8);
    let mut room = [0_u64; 4];
    // SAFETY: the policy of these tests does not write.
    unsafe {
        assert_eq!(ekiden_rs_save(0, 3, room.as_mut_ptr().cast(), 32), 3032);
        assert_eq!(ekiden_rs_figures(0, 3, room.as_mut_ptr(), 32), -35);
    }
    drop(running);
}

#[test]
fn a_wait_for_a_lock_ends_with_the_engine_and_not_only_with_its_time() {
    let mut since = Since([0; 4]);
    for (says, expected) in [(GO_ON, Patience::GoOn), (TOO_LONG, Patience::TooLong)] {
        LOOK_SAYS.set(says);
        assert_eq!(look(&mut since), expected);
    }
    assert_eq!(since.0[1], 2, "what the kernel keeps comes back to it");
    LOOK_SAYS.set(2);
    let ended = panic::catch_unwind(move || look(&mut since)).unwrap_err();
    LOOK_SAYS.set(GO_ON);
    let said = ended.downcast_ref::<&str>().map(|said| String::from(*said)).unwrap_or_default();
    assert!(said.contains("another CPU"), "{said}");
}
