//! What the simulator records is replayed without a difference, for every policy of the project.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use ekiden::Scheduler;
use ekiden_policies::{Cfs, Eevdf, Fifo, Wfq};
use ekiden_replay::Replay;
use ekiden_sim::{Machine, Simulation};
use ekiden_workload::builtin;

#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn replays<S: Scheduler>(load: &str) {
    let memory = Memory::default();
    let load = builtin::find(load, 4).unwrap().workload;
    Simulation::of::<S>(Machine::flat(4), "").recorded_into(memory.clone()).run(&load).unwrap();
    let outcome = Replay::of::<S>().run(&memory.0.borrow()[..]).unwrap();
    if let Some(first) = &outcome.first {
        panic!("{}: {first}", S::NAME);
    }
    assert!(outcome.calls > 100 && outcome.is_exact(), "{}: {outcome:?}", S::NAME);
}

#[test]
fn wfq_replays_exactly() {
    replays::<Wfq>("churn");
}

#[test]
fn fifo_replays_exactly() {
    replays::<Fifo>("churn");
}

#[test]
fn cfs_replays_exactly() {
    replays::<Cfs>("churn");
}

#[test]
fn eevdf_replays_exactly() {
    replays::<Eevdf>("churn");
}
