//! Rings of CPUs in memory that the tests look at: the kinds of records are in the recording's own documentation.

use std::{vec, vec::Vec};

use ekiden_host::abi::{Call, Reply};

use super::*;
use crate::kernel_fakes::{PLACES, turn};

const RECORDS: usize = 8;
const STRIDE: usize = PAGE + RECORDS * size_of::<Record>();

/// Memory for two CPUs and a page behind them that stays as it is.
struct CallLog {
    base: *mut u8,
}

impl CallLog {
    fn new() -> Self {
        let memory = vec![0_u8; 2 * STRIDE + 2 * PAGE].leak().as_mut_ptr();
        Self { base: memory.wrapping_add(memory.align_offset(PAGE)) }
    }

    fn run(&self, what: u32, ticks_khz: u32) -> Vec<(u32, usize)> {
        let args = CallLogArgs { base: self.base, records: RECORDS, cpus: 2, ticks_khz, instance: 3 };
        PLACES.take();
        // SAFETY: no call is under way, and the call log is leaked and as the arguments say.
        unsafe { run(&args, what) };
        PLACES.take()
    }

    fn place(&self, cpu: usize) -> usize {
        self.base as usize + cpu * STRIDE
    }

    /// How many records there have been on a CPU, and those that are in its ring.
    fn written(&self, cpu: usize) -> (u64, [[u64; 8]; RECORDS]) {
        let place = self.base.wrapping_add(cpu * STRIDE);
        // SAFETY: this much of the call log belongs to the CPU, and no call writer is there.
        unsafe { (place.cast::<u64>().read(), place.add(PAGE).cast::<[[u64; 8]; RECORDS]>().read()) }
    }

    fn end(&self) -> &[u8] {
        // SAFETY: there is a page behind the two rings.
        unsafe { slice::from_raw_parts(self.base.add(2 * STRIDE), PAGE) }
    }
}

#[test]
fn recording_begins_with_a_mark_on_each_cpu_and_ends_without() {
    let _turn = turn();
    let call_log = CallLog::new();
    assert_eq!(call_log.run(Mark::Begin as u32, 1), [(0, call_log.place(0)), (1, call_log.place(1))]);
    for cpu in [0, 1] {
        let (head, records) = call_log.written(cpu);
        assert_eq!((head, records[0]), (1, [4 | here::TICKS << 8, Mark::Begin as u64, 3, 0, 0, 0, 0, 0]));
    }
    assert!(ekiden_host::call_log_runs() && here().is_some());
    assert_eq!(call_log.run(0, 1), [(0, 0), (1, 0)]);
    assert!(!ekiden_host::call_log_runs() && here().is_none());
    assert_eq!((call_log.written(0).0, call_log.written(1).0), (1, 1), "stopping writes nothing");
}

#[test]
fn times_are_of_the_clock_where_the_counter_is_not_good_for_them() {
    let _turn = turn();
    let call_log = CallLog::new();
    for (ticks_khz, time) in [(0, 9_000), (2_000_000, here::TICKS)] {
        call_log.run(Mark::GoOn as u32, ticks_khz);
        let (head, records) = call_log.written(0);
        assert_eq!(records[head as usize - 1][0] >> 8, time);
    }
    call_log.run(0, 0);
}

#[test]
fn a_call_is_a_beginning_with_its_thread_and_an_end_with_what_it_has_learnt() {
    let _turn = turn();
    let call_log = CallLog::new();
    call_log.run(Mark::Begin as u32, 1);
    let place = here().unwrap();
    place.begin(&Message { arg: 9, ..Message::about_cpu(Call::PickNextTask, 1) }, &[]);
    assert_eq!(learn(42), 42, "what is learnt is not changed");
    place.end(&Reply { slice_ns: 8, cpu: ekiden_host::abi::NO_CPU, ..Reply::default() });
    learn(43);
    let (head, records) = call_log.written(0);
    assert_eq!(head, 3, "what is learnt outside of a call is none of a call's");
    assert_eq!(
        (records[1][0], records[1][1], records[1][7]),
        (1 | here::TICKS << 8, 1 << 32 | u64::from(here::THREAD) << 8, 9)
    );
    assert_eq!(records[2], [3 | 1 << 8, 0, 0, 8, 42, 0, 0, 0]);
    assert_eq!(call_log.written(1).0, 1, "the other CPU's ring is left alone");
    call_log.run(0, 1);
}

#[test]
fn what_happens_in_a_pause_is_in_no_ring() {
    let _turn = turn();
    let call_log = CallLog::new();
    call_log.run(Mark::Begin as u32, 1);
    let place = here().unwrap();
    place.begin(&Message::about_cpu(Call::PickNextTask, 0), &[]);
    let mut was_there = true;
    pause(0, || {
        was_there = here().is_some();
        learn(42);
    });
    assert!(!was_there && here().is_some(), "and afterwards it is as before");
    place.end(&Reply { cpu: ekiden_host::abi::NO_CPU, ..Reply::default() });
    assert_eq!(call_log.written(0).1[2][0], 3, "an end without a note");
    call_log.run(0, 1);
}

#[test]
fn a_fault_leaves_a_mark_in_the_call_and_none_without_a_call_log() {
    let _turn = turn();
    let call_log = CallLog::new();
    call_log.run(Mark::Begin as u32, 1);
    here().unwrap().begin(&Message::about_cpu(Call::PickNextTask, 0), &[]);
    mark_here(Mark::Fault);
    let (head, records) = call_log.written(0);
    assert_eq!((head, records[2][0] & 0xff, records[2][1], records[2][2]), (3, 4, Mark::Fault as u64, 3));
    call_log.run(0, 1);
    mark_here(Mark::Fault);
    assert_eq!(call_log.written(0).0, 3);
}

#[test]
fn a_ring_that_is_full_begins_anew_and_keeps_to_its_memory() {
    let _turn = turn();
    let call_log = CallLog::new();
    call_log.run(Mark::Begin as u32, 1);
    let place = here().unwrap();
    for _ in 0..3 * RECORDS {
        place.begin(&Message::about_cpu(Call::PickNextTask, 0), &[]);
        place.end(&Reply { cpu: ekiden_host::abi::NO_CPU, ..Reply::default() });
    }
    let (head, records) = call_log.written(0);
    assert_eq!(head, 1 + 6 * RECORDS as u64);
    assert_eq!((records[0][0] & 0xff, records[1][0] & 0xff), (3, 1), "the first record is the last end by now");
    assert_eq!((call_log.written(1).0, call_log.written(1).1[1]), (1, [0; 8]));
    assert!(call_log.end().iter().all(|byte| *byte == 0));
    call_log.run(0, 1);
}
