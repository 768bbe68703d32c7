//! A piece of a trace is a trace: it shows the machine as the whole does, and the checks find nothing in it that is not so.

use std::collections::BTreeSet;

use ekiden_check::{Checker, Limits, View, Violation};
use ekiden_policies::{Fifo, Wfq};
use ekiden_sim::{Machine, PolicyMaker, Simulation};
use ekiden_trace::{Cut, CutError, Header, OTHERS, Reader, Record, Trace, TraceError, What};
use ekiden_workload::{Step, TaskSpec, Workload, loads};

const MS: u64 = 1_000_000;

fn strict() -> Limits {
    Limits { every_ns: 15 * MS, persists_ns: 10 * MS, wait_ns: 2_000 * MS, kick_ns: MS / 4, ..Limits::default() }
}

fn run(policy: PolicyMaker, load: &Workload) -> Trace {
    let machine = Machine::new(ekiden::Topology::regular(2, 1, 2, 2));
    Simulation::with_policy(machine, policy).traced().with_considered().run(load).unwrap().trace
}

/// Loads in which tasks come and go, move, have nice values, affinities, groups and limits, and CPUs leave.
fn traces() -> Vec<(&'static str, Trace)> {
    ["forks+hogs:count=12:nice=3", "limited+pipes", "hogs:count=9:on=0-5+hotplug:cpu=3:off_us=30000", "desktop"]
        .into_iter()
        .map(|name| (name, run(PolicyMaker::of::<Wfq>(""), &loads::make(name, 8).unwrap())))
        .collect()
}

fn cut(trace: &Trace, cut: &Cut) -> Trace {
    let mut bytes = Vec::new();
    cut.run(Reader::new(trace.as_bytes()).unwrap(), &mut bytes).unwrap();
    Trace::from_bytes(bytes).unwrap()
}

fn checked(trace: &Trace) -> Vec<Violation> {
    let mut checker = Checker::new(&trace.header().unwrap(), &strict());
    trace.records().for_each(|record| checker.record(&record));
    checker.finish()
}

/// The machine after all records before a moment.
fn machine(trace: &Trace, until_ns: u64) -> Checker {
    let mut checker = Checker::with(&trace.header().unwrap(), Vec::new());
    trace.records().take_while(|record| record.time_ns < until_ns).for_each(|record| checker.record(&record));
    checker
}

fn last_ns(trace: &Trace) -> u64 {
    trace.records().last().unwrap().time_ns
}

/// Everything that is known of the machine but times.
fn shown(view: &View, cpus: &[u32], has: impl Fn(u32) -> bool) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for cpu in cpus {
        let (entry, queue) = (&view.cpus[*cpu as usize], &view.queues[*cpu as usize]);
        let waiting: Vec<u32> = queue.waiting.iter().copied().filter(|pid| has(*pid)).collect();
        let running = entry.running.filter(|pid| has(*pid));
        all.push(format!("{cpu}: {running:?} {waiting:?} {} {}", entry.online, entry.running.is_some()));
    }
    let mut tasks: Vec<String> = view
        .tasks()
        .filter(|task| has(task.pid))
        .map(|task| {
            let may_run: Vec<bool> = (0..8).map(|cpu| task.may_run(cpu)).collect();
            format!("{} {} {} {} {may_run:?}", task.pid, task.name(), task.nice, task.departed)
        })
        .collect();
    tasks.sort();
    all.extend(tasks);
    all
}

#[test]
fn all_of_a_trace_is_the_trace() {
    for (_, trace) in traces() {
        assert_eq!(cut(&trace, &Cut::default()), trace);
    }
}

#[test]
fn a_piece_shows_the_machine_as_the_whole_does() {
    let all: Vec<u32> = (0..8).collect();
    for (name, trace) in traces() {
        let end_ns = last_ns(&trace);
        for (from, until) in [(1, 2), (3, 7), (9, 10), (13, 16), (15, 15)] {
            let (from_ns, until_ns) = (end_ns * from / 16, end_ns * until / 16 + 1);
            let piece = cut(&trace, &Cut { from_ns, until_ns, ..Cut::default() });
            let (of_piece, of_whole) = (machine(&piece, u64::MAX), machine(&trace, until_ns));
            let shown = |view: &View| shown(view, &all, |_| true);
            assert_eq!(shown(of_piece.view()), shown(of_whole.view()), "{name} from {from_ns} until {until_ns}");
            assert!(last_ns(&piece) <= until_ns - from_ns);
            assert_eq!(piece.header().unwrap().begins_ns, from_ns);
        }
    }
}

#[test]
fn groups_and_limits_stand_at_the_beginning_of_a_piece() {
    let (_, trace) = traces().swap_remove(1);
    let piece = cut(&trace, &Cut { from_ns: last_ns(&trace) / 2, ..Cut::default() });
    let first: Vec<Record> = piece.records().take_while(|record| record.time_ns == 0).collect();
    let count = |what| first.iter().filter(|record| record.what == what).count();
    assert!(count(What::Limit) >= 2 && count(What::Group) > 0, "{first:?}");
    // A limit is recorded before the tasks that it is for.
    let place = |what| first.iter().position(|record| record.what == what);
    assert!(place(What::Limit) < place(What::Group));
}

#[test]
fn cpus_that_are_left_out_are_offline_and_the_others_as_they_were() {
    let kept = [1, 2, 5];
    for (name, trace) in traces() {
        let (from_ns, until_ns) = (last_ns(&trace) / 4, last_ns(&trace) / 2);
        let cpus = Some(kept.into_iter().collect());
        let piece = cut(&trace, &Cut { from_ns, until_ns, cpus, ..Cut::default() });
        let (of_piece, of_whole) = (machine(&piece, u64::MAX), machine(&trace, until_ns));
        let shown = |view: &View| shown(view, &kept, |_| true);
        assert_eq!(shown(of_piece.view()), shown(of_whole.view()), "{name}");
        for (cpu, entry) in (0..).zip(&of_piece.view().cpus).filter(|(cpu, _)| !kept.contains(cpu)) {
            let waiting = &of_piece.view().queues[cpu as usize].waiting;
            assert!(!entry.online && entry.running.is_none() && waiting.is_empty(), "{name}: CPU {cpu}");
        }
    }
}

#[test]
fn tasks_that_are_left_out_keep_their_cpus_busy() {
    let all: Vec<u32> = (0..8).collect();
    for (name, trace) in traces() {
        let (from_ns, until_ns) = (last_ns(&trace) / 4, last_ns(&trace) / 2);
        let whole = machine(&trace, until_ns);
        let pids: BTreeSet<u32> = whole.view().tasks().map(|task| task.pid).filter(|pid| pid % 3 == 0).collect();
        assert!(!pids.is_empty());
        let piece = cut(&trace, &Cut { from_ns, until_ns, pids: pids.clone(), ..Cut::default() });
        let of_piece = machine(&piece, u64::MAX);
        // Between two tasks a CPU runs neither, but a stand-in continues.
        let shown = |view: &View| {
            let mut lines = shown(view, &all, |pid| pids.contains(&pid));
            lines.iter_mut().take(8).for_each(|line| *line = line.trim_end_matches(" true").to_owned());
            lines.iter_mut().take(8).for_each(|line| *line = line.trim_end_matches(" false").to_owned());
            lines
        };
        assert_eq!(shown(of_piece.view()), shown(whole.view()), "{name}");
        for (in_piece, in_whole) in of_piece.view().cpus.iter().zip(&whole.view().cpus) {
            assert!(in_piece.running.is_some() || in_whole.running.is_none(), "{name}: a busy CPU looks idle");
        }
    }
}

#[test]
fn tasks_are_chosen_by_name_from_when_on_they_have_it() {
    let record = |time_ns, what, pid, value| Record { time_ns, cpu: 0, what, pid, value };
    let name = |text: &str| ekiden_trace::names(text).next().unwrap();
    let mut trace = Trace::new(&Header::of(&ekiden::Topology::flat(1)));
    for record in [
        record(0, What::New, 7, 0),
        record(0, What::Name, 7, name("sh")),
        record(0, What::Enqueue, 7, 0),
        record(5, What::Run, 7, 9),
        record(20, What::Name, 7, name("cc1")),
        record(30, What::Tick, 7, 0),
        record(40, What::Exit, 7, 0),
        record(50, What::New, 7, 0),
        record(50, What::Name, 7, name("ls")),
        record(50, What::Enqueue, 7, 0),
        record(60, What::Run, 7, 0),
        record(70, What::Exit, 7, 0),
        record(80, What::Idle, 0, 0),
    ] {
        trace.push(record);
    }
    let piece = cut(&trace, &Cut { names: vec!["cc*".into()], ..Cut::default() });
    let text: Vec<String> =
        piece.records().map(|record| format!("{} {} {}", record.time_ns, record.what.name(), record.pid)).collect();
    let other = piece.records().next().unwrap().pid;
    let expected = [
        format!("0 new {other}"),
        format!("0 name {other}"),
        format!("5 enqueue {other}"),
        format!("5 run {other}"),
        format!("30 block {other}"),
        "30 new 7".into(),
        "30 name 7".into(),
        "30 enqueue 7".into(),
        "30 run 7".into(),
        "30 tick 7".into(),
        "40 exit 7".into(),
        format!("60 enqueue {other}"),
        format!("60 run {other}"),
        format!("80 block {other}"),
        "80 idle 0".into(),
    ];
    assert_eq!(text, expected);
    assert_eq!(machine(&piece, u64::MAX).view().name(other).name, OTHERS);
    assert_eq!(checked(&piece), []);
}

#[test]
fn checks_find_nothing_in_a_piece_that_keeps_its_promises() {
    for (name, trace) in traces() {
        assert_eq!(checked(&trace), [], "{name}");
        let end_ns = last_ns(&trace);
        for part in 1..8 {
            let (from_ns, until_ns) = (end_ns * part / 9, end_ns * (part + 3) / 9);
            let time = Cut { from_ns, until_ns, ..Cut::default() };
            let cpus = Some((0..8).filter(|cpu| (cpu + part as u32) % 3 > 0).collect());
            let pids = (0..2_000).filter(|pid| (pid + part as u32) % 4 == 0).collect();
            for piece in [
                time.clone(),
                Cut { cpus: cpus.clone(), ..time.clone() },
                Cut { names: vec!["h*".into(), "p*".into()], ..time.clone() },
                Cut { pids, cpus, ..time },
            ] {
                assert_eq!(checked(&cut(&trace, &piece)), [], "{name}: {piece:?}");
            }
        }
    }
}

#[test]
fn wasted_cores_are_found_in_a_piece_too() {
    let steps = vec![Step::Run { ns: MS }, Step::SetAffinity { cpus: None }, Step::Run { ns: 400 * MS }];
    let load = Workload::new("crowd", 8, [TaskSpec::new("crowd", steps).on([0]).copies(4)]);
    let trace = run(PolicyMaker::of::<Fifo>(""), &load);
    let time = Cut { from_ns: 100 * MS, until_ns: 160 * MS, ..Cut::default() };
    let two = trace.records().filter_map(|record| record.task()).collect::<BTreeSet<_>>().into_iter().take(2).collect();
    for piece in
        [time.clone(), Cut { cpus: Some([0, 6].into_iter().collect()), ..time.clone() }, Cut { pids: two, ..time }]
    {
        let found = checked(&cut(&trace, &piece));
        let violation = found.first().expect("it is there in the whole");
        assert_eq!(violation.check, "work-conservation", "{found:#?}");
        assert!(violation.tasks[0].name.starts_with("crowd"), "{violation}");
    }
}

#[test]
fn what_is_under_way_is_told_at_the_beginning() {
    let record = |time_ns, cpu, what, pid, value| Record { time_ns, cpu, what, pid, value };
    let mut trace = Trace::new(&Header::of(&ekiden::Topology::flat(3)));
    for record in [
        record(0, 2, What::Offline, 0, 0),
        record(0, 0, What::New, 7, 1),
        record(0, 0, What::New, 8, 7),
        record(1, 0, What::Enqueue, 7, 0),
        record(2, 0, What::Run, 7, 30),
        record(3, 0, What::Keep, 7, 40),
        record(3, 0, What::Depart, 8, 0),
        record(4, 1, What::Lock, 0, 55),
        record(4, 0, What::Lock, 0, 66),
        record(4, 0, What::Lock, 0, 77),
        record(4, 0, What::Unlock, 0, 66),
        record(5, 0, What::Upgrade, 0, 1),
        record(6, 0, What::Fault, 0, 0),
        record(9, 0, What::Tick, 7, 0),
    ] {
        trace.push(record);
    }
    let piece = cut(&trace, &Cut { from_ns: 8, ..Cut::default() });
    let online: Vec<bool> = piece.header().unwrap().cpus.iter().map(|cpu| cpu.online).collect();
    assert_eq!(online, [true, true, false]);
    let expected = [
        record(0, 0, What::New, 7, 1),
        record(0, 0, What::New, 8, 7),
        record(0, 0, What::Depart, 8, 0),
        record(0, 0, What::Enqueue, 7, 0),
        record(0, 0, What::Run, 7, 40),
        record(0, 0, What::Lock, 0, 77),
        record(0, 1, What::Lock, 0, 55),
        record(0, 0, What::Upgrade, 0, 1),
        record(0, 0, What::Fault, 0, 0),
        record(1, 0, What::Tick, 7, 0),
    ];
    assert_eq!(piece.records().collect::<Vec<_>>(), expected);
}

#[test]
fn a_piece_of_a_piece_knows_where_it_was() {
    let (_, trace) = traces().remove(0);
    let once = cut(&trace, &Cut { from_ns: 7 * MS, until_ns: 20 * MS, ..Cut::default() });
    let twice = cut(&once, &Cut { from_ns: 3 * MS, until_ns: 6 * MS, ..Cut::default() });
    let at_once = cut(&trace, &Cut { from_ns: 10 * MS, until_ns: 13 * MS, ..Cut::default() });
    assert_eq!(twice.header().unwrap(), at_once.header().unwrap());
    assert_eq!(twice, at_once);
}

#[test]
fn what_cannot_be_cut_is_refused_with_its_place() {
    let (_, trace) = traces().remove(0);
    let end_ns = last_ns(&trace);
    let run = |bytes: &[u8], piece: &Cut| piece.run(Reader::new(bytes).unwrap(), std::io::sink());
    let beyond = run(trace.as_bytes(), &Cut { from_ns: end_ns + 1, ..Cut::default() });
    assert!(matches!(beyond, Err(CutError::Beyond { last_ns }) if last_ns == end_ns), "{beyond:?}");
    let short = &trace.as_bytes()[..trace.as_bytes().len() - 1];
    let damaged = run(short, &Cut::default());
    assert!(matches!(damaged, Err(CutError::Trace(TraceError::Damaged { .. }))), "{damaged:?}");
    // Records after the piece are not read.
    run(short, &Cut { until_ns: end_ns / 2, ..Cut::default() }).unwrap();
}
