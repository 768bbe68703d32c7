//! What a policy noted is in a recording of its calls, and a replay compares it.

mod common;

use common::{Memory, record};
use ekiden_recording::{Entry, Item, RecordingReader};
use ekiden_replay::{Outcome, Replay};
use ekiden_sim::{Machine, Simulation};
use ekiden_test_policies::Telling;
use ekiden_workload::builtin;

fn recording(params: &str) -> Vec<u8> {
    record(Simulation::of::<Telling>(Machine::flat(2), params), &builtin::find("messaging", 2).unwrap().workload).0
}

fn replay(recording: &[u8], params: &str) -> Outcome {
    Replay::of::<Telling>().with_params(params).run(recording).unwrap()
}

#[test]
fn a_recording_has_what_was_noted_in_each_call() {
    let recording = recording("more=1");
    let mut all = Vec::new();
    for recorded in RecordingReader::new(&recording[..]).unwrap() {
        if let Item::Entry(Entry::Call(call)) = recorded.unwrap().item {
            let brings = call.message.token_serial != 0;
            assert_eq!(call.noted.len(), if brings { 2 } else { 0 }, "{call:?}");
            all.extend(call.noted.iter().map(ToString::to_string));
        }
    }
    assert_eq!(all[..2], ["ahead_tasks 0", "of_a_name_as_long_as_names_may_b 1024"]);
    let outcome = replay(&recording, "more=1");
    assert!(outcome.is_exact() && outcome.calls > 50, "{outcome:?}");
}

#[test]
fn another_value_of_a_note_is_a_difference() {
    let outcome = replay(&recording(""), "plus=3");
    let first = outcome.first.expect("each note has another value");
    assert!(first.what.contains("it noted ahead_tasks 0, and in the replay ahead_tasks 3"), "{first}");
}

#[test]
fn a_note_that_is_missing_is_a_difference_and_one_more_is_none() {
    let outcome = replay(&recording("more=1"), "more=0");
    assert!(outcome.first.unwrap().what.ends_with("and in the replay ahead_tasks 0"));
    let outcome = replay(&recording("more=0"), "more=1");
    assert!(outcome.is_exact(), "{outcome:?}");
}

#[test]
fn a_replay_says_in_words_what_the_policy_says_by_now() {
    let mut text = Memory::default();
    let recording = recording("");
    let replay = Replay::of::<Telling>().with_params("text=1 more=1").debug_into(text.clone());
    assert!(replay.run(&recording[..]).unwrap().is_exact());
    let said = String::from_utf8(text.take()).unwrap();
    let lines: Vec<&str> = said.lines().take(3).collect();
    assert_eq!(
        lines,
        [
            "#3 at 0 ns: task_new(cpu 0, PID 1000): ahead_tasks 0",
            "#3 at 0 ns: task_new(cpu 0, PID 1000): of_a_name_as_long_as_names_may_b 1024",
            "#3 at 0 ns: task_new(cpu 0, PID 1000): 0 ahead at 0 ns",
        ]
    );
    Replay::of::<Telling>().with_params("text=1").run(&recording[..]).unwrap();
    assert_eq!(text.take(), b"");
}
