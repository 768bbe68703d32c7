//! Texts for people, written into rooms of every length.

use std::{
    string::{String, ToString},
    vec,
    vec::Vec,
};

use super::*;
use crate::kernel_fakes::{Running, without_engine};

/// The text in a room of `len` bytes; nothing may be written behind it.
fn written(len: usize, write: impl FnOnce(*mut u8, usize) -> i64) -> Vec<u8> {
    let mut room = vec![b'#'; len + 16];
    let used = write(room.as_mut_ptr(), len);
    assert!((0..=len as i64).contains(&used), "{used} bytes of {len}");
    assert!(room[len..].iter().all(|byte| *byte == b'#'), "something was written behind {len} bytes");
    room.truncate(used as usize);
    room
}

fn status(len: usize, policy_slot: u64) -> String {
    // SAFETY: the room is as long as is said.
    String::from_utf8(written(len, |room, len| unsafe { ekiden_rs_status(room, len, policy_slot) })).unwrap()
}

#[test]
fn the_status_names_what_the_engine_and_its_policy_have_counted() {
    let running = Running::on(2, 8);
    let task = running.task(0xabc0);
    running.wake(task, 0);
    running.pick(0);
    running.pick(1);
    assert_eq!(
        status(4096, 0),
        ",\"capacity\":8,\"throttled\":0,\"beyond\":0,\"groups\":0,\"groups_without_room\":0,\"tasks\":1,\"picks\":1,\"idles\":1,\
         \"migrations\":0,\"refusals\":0,\"unexpected_transitions\":0,\"slowed\":0,\"turns\":0,\"ticks\":0,\"contract_violations\":0"
    );
    assert_eq!(
        status(4096, 1),
        ",\"alive\":true,\"default\":true,\"checks\":\"report\",\"tasks\":1,\"picks\":1,\"idles\":1,\"migrations\":0,\
         \"refusals\":0,\"unexpected_transitions\":0,\"slowed\":0,\"turns\":0,\"ticks\":0,\"contract_violations\":0"
    );
    assert_eq!([status(4096, 2), status(4096, u64::MAX)], ["", ""], "there is one policy slot");
}

#[test]
fn a_status_that_does_not_fit_is_cut_at_the_end_of_the_room() {
    let running = Running::on(2, 8);
    let _ = &running;
    for policy_slot in [0, 1] {
        let whole = status(4096, policy_slot);
        for len in 0..whole.len() + 2 {
            assert_eq!(status(len, policy_slot), whole[..len.min(whole.len())]);
        }
    }
}

#[test]
fn without_an_engine_there_is_no_status_and_no_counter() {
    let _turn = without_engine();
    assert_eq!((status(64, 0), status(64, 1)), (String::new(), String::new()));
    let mut counters = [7; 8];
    // SAFETY: there is room for eight.
    assert!(!unsafe { ekiden_rs_counters(0, 0, counters.as_mut_ptr()) });
    assert_eq!(counters, [7; 8]);
}

#[test]
fn counters_are_those_of_one_cpu_and_of_policy_slots_and_cpus_that_exist() {
    let running = Running::on(2, 8);
    let task = running.task(0xabc0);
    running.wake(task, 1);
    running.pick(1);
    running.pick(0);
    let counted = |policy_slot, cpu| {
        let mut counters = [u64::MAX; 9];
        // SAFETY: there is room for eight.
        let is_there = unsafe { ekiden_rs_counters(policy_slot, cpu, counters.as_mut_ptr()) };
        assert_eq!(counters[8], u64::MAX, "eight are written");
        is_there.then_some(counters)
    };
    let picks_and_idles = |cpu| counted(0, cpu).map(|counters| (counters[0], counters[1]));
    assert_eq!((picks_and_idles(0), picks_and_idles(1)), (Some((0, 1)), Some((1, 0))));
    assert_eq!((counted(0, 2), counted(0, CpuId::MAX), counted(1, 0), counted(u64::MAX, 0)), (None, None, None, None));
}

/// A counter and a histogram, as [`ekiden_host::Figures`] describes them.
fn described() -> Vec<u8> {
    [b"\x01late\0how \"late\" a \\ is\0".as_slice(), b"\x02wait_ns\0how long, in \xc2\xb5\0"].concat()
}

fn figures(len: usize, description: &[u8], words: &[u64; FIGURES_WORDS]) -> String {
    // SAFETY: all three are as long as is said.
    let write = |room: *mut u8, len| unsafe {
        ekiden_rs_put_figures(room, len, description.as_ptr(), description.len(), words.as_ptr())
    };
    String::from_utf8(written(len, write)).unwrap()
}

const ONE: &str = r#","figures":[{"name":"late","help":"how \"late\" a \\ is","count":18446744073709551615}"#;
const OTHER: &str = r#",{"name":"wait_ns","help":"how long, in µ","buckets":[[0,3],[1,4],[4,5]]}"#;

fn counted() -> [u64; FIGURES_WORDS] {
    let mut words = [0; FIGURES_WORDS];
    words[..5].copy_from_slice(&[u64::MAX, 3, 4, 0, 5]);
    words
}

#[test]
fn figures_are_json_whatever_their_help_says() {
    assert_eq!(figures(4096, &described(), &counted()), [ONE, OTHER, "]"].concat());
    assert_eq!(figures(4096, b"", &counted()), "", "a policy without figures has no member of that name");
}

#[test]
fn figures_that_do_not_fit_are_left_out_whole() {
    let (description, words) = (described(), counted());
    let (one, both) = ([ONE, "]"].concat(), [ONE, OTHER, "]"].concat());
    for len in 0..both.len() + 4 {
        let text = figures(len, &description, &words);
        assert!(["", &one, &both].contains(&&*text), "of {len} bytes: {text}");
        // One byte more than it takes is enough.
        assert!(len <= both.len() || text == both, "of {len} bytes: {text}");
        assert!(len <= one.len() || !text.is_empty(), "of {len} bytes: nothing");
    }
}

#[test]
fn a_description_that_makes_no_sense_ends_the_figures_and_nothing_else() {
    let (whole, words) = (described(), counted());
    let first = [ONE, "]"].concat();
    let with = |end: &[u8]| {
        figures(4096, &[&whole[..whole.iter().rposition(|byte| *byte == 2).unwrap()], end].concat(), &words)
    };
    for end in [&b"\x03x\0y\0"[..], b"\x02", b"\x02x", b"\x02x\0", b"\x02x\0y", b"\x02\xff\0y\0", b"\0"] {
        assert_eq!(with(end), first, "{end:?}");
    }
    // More words than there are.
    let many: Vec<u8> = (0..17).flat_map(|at| [b"\x02a", at.to_string().as_bytes(), b"\0\0"].concat()).collect();
    assert_eq!(figures(1 << 16, &many, &words).matches("\"name\"").count(), FIGURES_WORDS / 64);
}
