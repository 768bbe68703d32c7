//! A module's table, called as `ekiden.ko` calls it.

use core::mem::MaybeUninit;
use std::{string::String, vec::Vec};

use ekiden_host::abi::{Call, Message, NO_CPU, RawParams, Reply, TaskId};

use super::*;
use crate::kernel_fakes::{Plain, TABLE, args, calls, instance, turn};

fn call(instance: *mut c_void, message: &Message) -> Reply {
    let mut reply = MaybeUninit::uninit();
    // SAFETY: the instance comes from this table, and all else is good for the call.
    unsafe { (TABLE.deliver)(&mut reply, instance, message, [].as_ptr(), 0) };
    // SAFETY: it has returned, so it has written its reply.
    unsafe { reply.assume_init() }
}

fn wake(instance: *mut c_void, slot: u32, cpu: u32) {
    let task = TaskId { slot, generation: 1 };
    let new = Message {
        task,
        token_cpu: cpu,
        token_serial: slot + 1,
        weight: 1024,
        ..Message::about_cpu(Call::TaskNew, cpu)
    };
    call(instance, &new);
}

/// The index of the task that is picked.
fn pick(instance: *mut c_void, cpu: u32) -> Option<u32> {
    let token = call(instance, &Message::about_cpu(Call::PickNextTask, cpu)).token;
    (token.serial != 0).then_some(token.task.slot)
}

fn refusal(args: &CreateArgs) -> String {
    String::from_utf8(args.error[..args.error_len as usize].to_vec()).unwrap()
}

#[test]
fn the_table_says_what_the_policy_is() {
    assert_eq!((TABLE.abi_version, TABLE.size as usize), (ABI_VERSION, size_of::<PolicyTable>()));
    assert_eq!((&TABLE.name[..6], TABLE.name[NAME_LEN - 1]), (&b"plain\0"[..], 0));
    assert_eq!(TABLE.calls, Plain::CALLS.0);
    assert_eq!(TABLE.params_declared, TaskParams::fingerprint::<Plain>());
    assert_ne!((TABLE.layout, TABLE.params_declared), (0, 0));
}

#[test]
fn an_instance_keeps_the_tokens_that_it_is_handed() {
    let _turn = turn();
    let instance = instance(2);
    [(3, 0), (4, 1), (5, 0)].into_iter().for_each(|(slot, cpu)| wake(instance, slot, cpu));
    assert_eq!([pick(instance, 0), pick(instance, 0), pick(instance, 0)], [Some(3), Some(5), None]);
    assert_eq!([pick(instance, 1), pick(instance, 1)], [Some(4), None]);
}

#[test]
fn arguments_that_make_no_sense_are_refused_with_a_reason() {
    let _turn = turn();
    for (wrong, said) in [
        (args(2, b"mark=10"), "mark"),
        (args(2, b"bread=1"), "bread"),
        (args(2, b"mark=\xff"), "UTF-8"),
        (CreateArgs { topology_len: 1, ..args(2, b"") }, "topology is broken"),
    ] {
        let mut wrong = wrong;
        // SAFETY: the arguments are good for the calls, and no instance runs.
        let (is_good, made) = unsafe { ((TABLE.check)(&mut wrong), (TABLE.create)(&mut wrong)) };
        assert!(!is_good && made.is_null(), "{said}");
        assert!(refusal(&wrong).contains(said), "{}", refusal(&wrong));
    }
    // SAFETY: the arguments name what is leaked.
    assert!(unsafe { (TABLE.check)(&mut args(2, b"mark=9")) });
}

#[test]
fn a_successor_has_all_tokens_of_the_one_that_gave() {
    let _turn = turn();
    let old = instance(2);
    [(3, 0), (4, 1), (5, 0)].into_iter().for_each(|(slot, cpu)| wake(old, slot, cpu));
    let mut handover = MaybeUninit::zeroed();
    // SAFETY: no call is under way, and the old instance is not used again; `give` fills in what `take` reads.
    let new = unsafe {
        (TABLE.give)(old, handover.as_mut_ptr());
        (TABLE.take)(&mut args(2, b""), handover.as_mut_ptr())
    };
    assert_eq!([pick(new, 0), pick(new, 1), pick(new, 0), pick(new, 0)], [Some(3), Some(4), Some(5), None]);
}

#[test]
fn what_is_saved_is_restored_and_a_room_that_is_too_small_is_told() {
    let _turn = turn();
    let (mut args, mut room) = (args(2, b"mark=6"), [0_u8; 13]);
    // SAFETY: the instances come from this table, and the rooms are as long as is said.
    unsafe {
        let old = (TABLE.create)(&mut args);
        for len in 0..room.len() {
            assert_eq!((TABLE.save)(old, 0, room.as_mut_ptr(), len), -1, "{len} bytes");
        }
        assert_eq!((TABLE.save)(old, 0, room.as_mut_ptr(), room.len()), 13);
        assert_eq!((&room[..5], room[5]), (&b"plain"[..], 6));
        args.saved = room.as_ptr();
        args.saved_len = 12;
        assert!((TABLE.create)(&mut args).is_null());
        assert_eq!(refusal(&args), "that is in another form");
        args.saved_len = 13;
        let new = (TABLE.create)(&mut args);
        room[5] = 0;
        (TABLE.save)(new, 0, room.as_mut_ptr(), room.len());
        assert_eq!(room[5], 6);
    }
}

#[test]
fn figures_are_described_once_and_counted_for_each_cpu() {
    let _turn = turn();
    let instance = instance(2);
    (0..3).for_each(|slot| wake(instance, slot, 1));
    while pick(instance, 1).is_some() {}
    let mut room = [u64::MAX; 64];
    // SAFETY: the instance comes from this table; rooms are at least as long as is said.
    let mut write = |cpu, len| unsafe { ((TABLE.figures)(instance, cpu, room.as_mut_ptr(), len), room) };
    let (described, room) = write(NO_CPU, 512);
    let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(bytes[..described as usize], *b"\x01picks\0how often a task was picked\0");
    assert_eq!(write(NO_CPU, described as usize - 1).0, -1);
    let counted = |(len, room): (i64, [u64; 64])| (len, room[0]);
    assert_eq!((counted(write(1, 8)), counted(write(0, 512))), ((8, 3), (8, 0)));
    assert_eq!([write(1, 7).0, write(1, 0).0], [-1, -1], "there is no room for a word");
    assert_eq!(here::FUEL.get(), MUCH_FUEL, "it has fuel of its own");
}

fn set(text: &[u8]) -> Result<RawParams, String> {
    let params = RawParams::default();
    let mut asked = Settings { text: text.as_ptr(), text_len: text.len(), params, error_len: 0, error: [0; 256] };
    // SAFETY: the request is good for the call, and tests take turns.
    let is_good = unsafe { (TABLE.settings)(&mut asked) };
    let error = String::from_utf8_lossy(&asked.error[..asked.error_len as usize]).into_owned();
    if is_good { Ok(asked.params) } else { Err(error) }
}

#[test]
fn settings_of_tasks_are_checked_by_declaration_and_by_the_policy() {
    let _turn = turn();
    let good = set(b"rank=5").unwrap();
    assert_eq!((good.declared, good.values[0]), (TABLE.params_declared, 5));
    assert_eq!(set(b"").unwrap().values[0], 3, "what is not named is as by default");
    for (text, said) in [(&b"rank=10"[..], "rank"), (b"rank=7", "no rank is 7"), (b"x=1", "rank"), (b"\xff", "UTF-8")] {
        let error = set(text).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(CHECKED_FROM.load(Relaxed), 0, "no check is under way any more");
}

#[test]
fn a_check_that_has_panicked_too_often_is_not_asked_any_more() {
    let _turn = turn();
    CHECK_PANICS.store(CHECK_PANICS_MOST - 1, Relaxed);
    assert!(set(b"rank=5").is_ok());
    CHECK_PANICS.store(CHECK_PANICS_MOST, Relaxed);
    assert!(set(b"rank=5").unwrap_err().contains("too often"));
    let _ = instance(1);
    assert!(set(b"rank=5").is_ok(), "the next instance is asked again");
}

#[test]
fn the_reason_of_a_fault_is_told_before_locks_are_poisoned_and_once() {
    let _turn = turn();
    calls();
    leave_with(b"out of range at fifo.rs:7");
    assert_eq!(calls(), ["reason out of range at fifo.rs:7", "fault"]);
    assert!(ekiden_host::locks_are_poisoned(OF_HOST));
    leave_with(b"a lock was not released");
    assert_eq!(calls(), ["fault"], "what follows from the first fault is no reason");
    begin_anew();
    assert!(!ekiden_host::locks_are_poisoned(OF_HOST));
}

#[test]
fn fuel_that_is_used_up_ends_the_policy_with_what_the_module_says_of_it() {
    let _turn = turn();
    calls();
    here::FUEL.set(0);
    // SAFETY: it is a C string.
    unsafe { ekiden_spent(c"ran for too long".as_ptr()) };
    assert_eq!(calls(), ["reason ran for too long", "fault"]);
    assert_eq!(here::FUEL.get(), i64::MAX, "the way out is not ended by its own fuel");
}

/// The functions of these tests return where those of the kernel do not, so only what comes first counts.
#[test]
fn a_panic_in_a_check_is_the_answer_to_who_asked_and_no_fault() {
    let _turn = turn();
    let mut asked =
        Settings { text: ptr::null(), text_len: 0, params: RawParams::default(), error_len: 0, error: [0; 256] };
    CHECKED.store(&mut asked, Relaxed);
    for (from, first, noted) in [(here::guard() + 1, "reason it panicked", 0), (here::guard(), "leave", 11)] {
        begin_anew();
        calls();
        CHECKED_FROM.store(from, Relaxed);
        leave_with(b"it panicked");
        assert_eq!(
            (calls()[0].as_str(), asked.error_len),
            (first, noted),
            "the call that checks was entered at {from}"
        );
    }
    assert_eq!((CHECK_PANICS.load(Relaxed), CHECKED_FROM.load(Relaxed)), (1, 0));
    assert_eq!(asked.error[..11], b"it panicked"[..]);
}

#[test]
fn the_words_of_a_set_are_those_of_the_machine() {
    let _turn = turn();
    for (nr_cpus, words) in [(1, 1), (64, 1), (65, 2), (200, 4)] {
        let _ = instance(nr_cpus);
        assert_eq!(MASK_WORDS.load(Relaxed), words, "{nr_cpus} CPUs");
    }
}
