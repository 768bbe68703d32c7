//! What policies say of their decisions is in the trace, and in words where that is wanted.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use ekiden_policies::Mlfq;
use ekiden_sim::{Machine, Record, SimError, Simulation, Successor, What};
use ekiden_test_policies::Telling;
use ekiden_trace::NoteNames;
use ekiden_workload::{Workload, builtin, loads};

fn load() -> Workload {
    builtin::find("messaging", 2).unwrap().workload
}

/// The records of notes, and what they say.
fn notes(simulation: Simulation, load: &Workload) -> Vec<(Record, String)> {
    let trace = simulation.traced().run(load).unwrap().trace;
    let mut names = NoteNames::default();
    trace.records().filter_map(|record| Some((record, names.record(&record)?.to_string()))).collect()
}

/// Text that can be looked at when it has been written.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Memory {
    fn take(&self) -> String {
        String::from_utf8(self.0.take()).unwrap()
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn notes_are_in_the_trace_with_the_task_that_they_are_about() {
    let simulation = Simulation::of::<Telling>(Machine::flat(2), "more=1").traced();
    let trace = simulation.run(&load()).unwrap().trace;
    let (mut names, mut last, mut count) = (NoteNames::default(), None, 0);
    let records: Vec<Record> = trace.records().collect();
    for record in &records {
        let Some(note) = names.record(record) else { continue };
        count += 1;
        let is_weight = note.to_string() == "of_a_name_as_long_as_names_may_b 1024";
        assert!(is_weight || note.to_string().starts_with("ahead_tasks "), "{note}");
        assert_eq!(is_weight, last == Some((record.time_ns, record.pid)) && count % 2 == 0, "they come in pairs");
        last = Some((record.time_ns, record.pid));
        let is_its = |other: &&Record| other.what == What::New && other.pid == record.pid;
        assert_eq!(records.iter().filter(is_its).count(), 1, "PID {}", record.pid);
    }
    assert!(count > 50, "{count}");
}

#[test]
fn a_trace_has_no_notes_of_another_simulation_on_the_same_thread() {
    let one = || Simulation::of::<Telling>(Machine::flat(2), "");
    let first = notes(one(), &load());
    one().run(&load()).unwrap();
    assert!(one().traced().max_tasks(0).run(&load()).is_ok());
    assert_eq!(notes(one(), &load()), first);
}

#[test]
fn a_policy_that_takes_over_is_heard_as_well() {
    let simulation = Simulation::of::<Telling>(Machine::flat(2), "");
    let load = loads::make("hogs:count=6:ms=50", 2).unwrap();
    let told = notes(simulation.upgrade(5_000_000, Successor::of::<Telling>("plus=9")), &load);
    assert!(told.iter().any(|(_, note)| note == "ahead_tasks 0"));
    let told = notes(
        Simulation::of::<Mlfq>(Machine::flat(2), "").upgrade(5_000_000, Successor::of::<Telling>("plus=9")),
        &load,
    );
    let first = told.iter().find(|(_, note)| note.starts_with("ahead_tasks ")).unwrap();
    assert_eq!((first.0.time_ns, first.1.as_str()), (5_000_000, "ahead_tasks 9"));
}

#[test]
fn mlfq_notes_how_far_a_task_has_come_down() {
    let load = loads::make("hogs:count=1:ms=200", 1).unwrap();
    let told = notes(Simulation::of::<Mlfq>(Machine::flat(1), ""), &load);
    let told: Vec<&str> = told.iter().map(|(_, note)| note.as_str()).collect();
    assert_eq!(told, ["down_to_level 1", "down_to_level 2", "down_to_level 3"]);
}

#[test]
fn what_a_policy_says_in_words_is_written_down_in_order() {
    let text = Memory::default();
    let simulation = Simulation::of::<Telling>(Machine::flat(2), "text=1");
    simulation.debug_into(text.clone()).run(&load()).unwrap();
    let said = text.take();
    let lines: Vec<&str> = said.lines().take(2).collect();
    assert_eq!(
        lines,
        [
            "         0.000 [  0] task_new pid 1000: ahead_tasks 0",
            "         0.000 [  0] task_new pid 1000: 0 ahead at 0 ns",
        ]
    );
    // Without `debug_into` there is no text.
    Simulation::of::<Telling>(Machine::flat(2), "text=1").run(&load()).unwrap();
    assert_eq!(text.take(), "");
}

#[test]
fn a_full_disk_ends_what_is_said_and_is_told() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let error = Simulation::of::<Telling>(Machine::flat(2), "").debug_into(Full).run(&load()).unwrap_err();
    assert!(matches!(error, SimError::Debug(_)), "{error}");
}
