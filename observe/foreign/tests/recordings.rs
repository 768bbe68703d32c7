//! Recordings that trace-cmd and perf made (`scripts/foreign-recordings`) are read as what they are, and broken ones are
//! refused.

use std::{
    fs,
    io::{self, Cursor, Read},
    path::Path,
};

use cap::Cap;
use ekiden_check::{Checker, Limits, Violation};
use ekiden_foreign::{Foreign, ForeignError};
use ekiden_trace::{Record, Trace, What};
use expect_test::{Expect, expect};

/// Counts what is allocated.
#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

fn recording(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings").join(format!("{name}.zst"));
    zstd::decode_all(fs::File::open(path).unwrap()).unwrap()
}

/// The trace that is made of it, and the error at its end.
fn read(bytes: &[u8]) -> Result<(Trace, Option<String>), ForeignError> {
    let mut made = Vec::new();
    let end = Foreign::open(Cursor::new(bytes))?.read_to_end(&mut made);
    Ok((Trace::from_bytes(made).expect("it is a trace"), end.err().map(|error| error.to_string())))
}

fn whole(name: &str) -> Trace {
    let (trace, end) = read(&recording(name)).unwrap();
    assert_eq!(end, None);
    trace
}

fn violations(trace: &Trace) -> Vec<Violation> {
    let mut checker = Checker::new(&trace.header().unwrap(), &Limits::default());
    trace.records().for_each(|record| checker.record(&record));
    checker.finish()
}

fn count(trace: &Trace, what: What) -> usize {
    trace.records().filter(|record| record.what == what).count()
}

/// Tasks of the load, which all of them recorded, by their names.
fn has_task(trace: &Trace, name: &str) -> bool {
    let piece = ekiden_trace::names(name).next();
    trace.records().any(|record| record.what == What::Name && record.cpu == 0 && Some(record.value) == piece)
}

fn check_whole(name: &str, counts: Expect) {
    let trace = whole(name);
    let header = trace.header().unwrap();
    assert_eq!(header.nr_cpus(), 4);
    assert!(has_task(&trace, "sh") && has_task(&trace, "busybox"), "{name} has the load");
    let found = violations(&trace);
    assert!(found.is_empty(), "{name}: {}", found[0]);
    let wanted = [What::Run, What::Idle, What::Wake, What::Migrate, What::New, What::Exit, What::Lost];
    let told: Vec<String> = wanted.iter().map(|what| format!("{} {}", count(&trace, *what), what.name())).collect();
    counts.assert_eq(&format!("{}: {}", header.workload, told.join(", ")));
}

#[test]
fn what_trace_cmd_recorded_is_read_in_each_form() {
    check_whole(
        "trace-cmd-v6.dat",
        expect![
            "what trace-cmd recorded on Linux (none) 7.3.4+deb13-cloud-amd64 x86_64: 606 run, 554 idle, 594 wake, 11 migrate, 22 new, 4 exit, 0 lost"
        ],
    );
    check_whole(
        "trace-cmd-v7.dat",
        expect![
            "what trace-cmd recorded on Linux (none) 7.3.4+deb13-cloud-amd64 x86_64: 712 run, 345 idle, 706 wake, 4 migrate, 17 new, 4 exit, 0 lost"
        ],
    );
    check_whole(
        "trace-cmd-v7-zstd.dat",
        expect![
            "what trace-cmd recorded on Linux (none) 7.3.4+deb13-cloud-amd64 x86_64: 581 run, 543 idle, 573 wake, 9 migrate, 25 new, 4 exit, 0 lost"
        ],
    );
}

#[test]
fn what_perf_recorded_is_read_in_each_form() {
    check_whole(
        "perf.data",
        expect![
            "/usr/bin/perf record -a -B -N -e sched:sched_switch -e sched:sched_waking -e sched:sched_wakeup -e sched:sched_wakeup_new -e sched:sched_migrate_task -e sched:sched_process_fork -o perf.data sh load: 593 run, 578 idle, 581 wake, 5 migrate, 13 new, 4 exit, 0 lost"
        ],
    );
    check_whole(
        "perf-zstd.data",
        expect![
            "/usr/bin/perf record -a -B -N -e sched:sched_switch -e sched:sched_waking -e sched:sched_wakeup -e sched:sched_wakeup_new -e sched:sched_migrate_task -e sched:sched_process_fork -z -o perf-zstd.data sh load: 596 run, 552 idle, 584 wake, 7 migrate, 15 new, 4 exit, 0 lost"
        ],
    );
    check_whole(
        "perf-sched.data",
        expect![
            "/usr/bin/perf sched record -B -N -o perf-sched.data sh load: 717 run, 351 idle, 705 wake, 6 migrate, 15 new, 4 exit, 0 lost"
        ],
    );
}

#[test]
fn lost_events_are_told_where_they_were_lost_and_nothing_runs_twice_for_them() {
    for name in ["trace-cmd-extract.dat", "perf-lost.data"] {
        let trace = whole(name);
        assert!(count(&trace, What::Lost) > 0, "{name} has holes");
        assert!(violations(&trace).iter().all(|violation| violation.check != "double-run"), "{name}");
    }
}

#[test]
fn recordings_that_cannot_be_used_are_refused_with_what_to_do() {
    let refused = |bytes: &[u8]| read(bytes).map(drop).expect_err("it is refused").to_string();
    expect!["the recording cannot be used: it was written to a pipe; record it to a file, with `perf record -o FILE`"]
        .assert_eq(&refused(&recording("perf-pipe.data")));
    expect!["the recording cannot be used: it has no sched_switch events; record them, as `trace-cmd record -e sched` and `perf sched record` do"].assert_eq(&refused(&recording("perf-no-switch.data")));
    expect!["the recording cannot be used: it has no sched_switch events; record them, as `trace-cmd record -e sched` and `perf sched record` do"].assert_eq(&refused(&recording("trace-cmd-no-switch.dat")));
    let mut of_version_8 = recording("trace-cmd-v7.dat");
    of_version_8[10] = b'8';
    expect!["this trace.dat has version 8, and 6 and 7 can be read: convert it with `trace-cmd convert`"]
        .assert_eq(&refused(&of_version_8));
    expect!["this is neither a trace.dat of trace-cmd nor a perf.data of perf: give the file that one of them wrote"]
        .assert_eq(&refused(b"EKITRACE"));
    expect!["this is neither a trace.dat of trace-cmd nor a perf.data of perf: give the file that one of them wrote"]
        .assert_eq(&refused(b""));
    expect!["the recording is damaged or cut off at byte 5000: record it again"]
        .assert_eq(&refused(&recording("trace-cmd-v7.dat")[..5_000]));
}

#[test]
fn a_recording_that_is_cut_off_tells_what_comes_before() {
    let (all, bytes) = (whole("perf.data"), recording("perf.data"));
    // The descriptions of a file of perf are behind its events, those of trace-cmd before them.
    assert!(matches!(read(&bytes[..bytes.len() / 2]), Err(ForeignError::Damaged { .. })));
    assert!(all.records().count() > 0);
    let (all, bytes) = (whole("trace-cmd-v6.dat"), recording("trace-cmd-v6.dat"));
    let (some, end) = read(&bytes[..bytes.len() - 4_096]).unwrap();
    assert!(end.is_some_and(|end| end.contains("damaged or cut off at byte")));
    let (some, all): (Vec<Record>, Vec<Record>) = (some.records().collect(), all.records().collect());
    assert!(!some.is_empty() && some.len() < all.len() && all.starts_with(&some));
}

/// Reads all that can be read; the fuzzer looks at what comes of it.
fn read_through(bytes: &[u8]) {
    if let Ok(mut recording) = Foreign::open(Cursor::new(bytes)) {
        // That it ends there is one of the two things that may be.
        drop(io::copy(&mut recording, &mut io::sink()));
    }
}

/// Reads small recordings that are cut off, and such with a bit that is another, about `most` of each.
fn break_small_ones(most: usize) {
    for name in ["small.dat", "small.data"] {
        let bytes =
            fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/fuzz/seeds/foreign").join(name)).unwrap();
        for len in (0..bytes.len()).step_by(bytes.len() / most + 1) {
            read_through(&bytes[..len]);
        }
        let bits = bytes.len() * 8;
        for bit in (0..bits).step_by(bits / most + 1) {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            read_through(&bytes);
        }
    }
    assert!(ALLOCATOR.max_allocated() < 64 << 20, "{} bytes were allocated at once", ALLOCATOR.max_allocated());
}

#[test]
fn no_change_of_a_bit_and_no_cut_makes_the_reader_panic_or_take_much_memory() {
    break_small_ones(2_000);
}

#[test]
#[ignore = "takes minutes: every bit and every length"]
fn none_at_all_does() {
    break_small_ones(usize::MAX);
}
