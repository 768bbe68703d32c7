//! Tiles against the plainest way to count: nanosecond by nanosecond.

use std::collections::HashMap;

use ekiden::{CpuMask, Topology, weight_of_nice};
use ekiden_abi::{NoteName, Noted};
use ekiden_check::Verdict;
use ekiden_page::{
    Builder, Model, NO_TASK, Notes, REPORT_BYTES_MAX,
    tile::{BINS, TileId},
};
use ekiden_trace::{Header, InQueue, QueueNote, Record, What, noted};
use proptest::prelude::*;

const CPUS: u32 = 3;

/// A CPU during one nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Moment {
    tasks: u32,
    load: u32,
    runs: Option<u32>,
}

/// Each CPU, nanosecond by nanosecond.
fn plainly(records: &[Record], end_ns: u64) -> Vec<Vec<Moment>> {
    let mut places: HashMap<u32, (u32, bool)> = HashMap::new();
    let mut nice: HashMap<u32, i32> = HashMap::new();
    let mut left = records.iter().peekable();
    let mut all = vec![Vec::new(); CPUS as usize];
    for now_ns in 0..end_ns {
        while let Some(record) = left.next_if(|record| record.time_ns <= now_ns) {
            match record.what {
                What::Enqueue => {
                    places.insert(record.pid, (record.cpu, false));
                }
                What::Run => {
                    places.insert(record.pid, (record.cpu, true));
                }
                What::Preempt | What::Block => {
                    places.remove(&record.pid);
                }
                What::Nice => {
                    nice.insert(record.pid, record.value as i32);
                }
                _ => {}
            }
        }
        for (cpu, moments) in (0..).zip(&mut all) {
            let here = || places.iter().filter(|(_, (at, _))| *at == cpu);
            let weight = |pid| weight_of_nice(nice.get(pid).copied().unwrap_or_default());
            moments.push(Moment {
                tasks: here().count() as u32,
                load: here().map(|(pid, _)| weight(pid)).sum(),
                runs: here().find(|(_, (_, runs))| *runs).map(|(pid, _)| *pid),
            });
        }
    }
    all
}

/// What could happen: a task runs only where none does.
fn records() -> impl Strategy<Value = Vec<Record>> {
    let step = (0_u64..150, 0..CPUS, 1_u32..6, 0_u32..5);
    prop::collection::vec(step, 1..120).prop_map(|steps| {
        let mut running: HashMap<u32, u32> = HashMap::new();
        let mut records = Vec::new();
        let mut time_ns = 0;
        for (later_ns, cpu, pid, kind) in steps {
            time_ns += later_ns;
            let is_busy = running.get(&cpu).is_some_and(|other| *other != pid);
            let runs_elsewhere = running.iter().any(|(at, other)| *other == pid && *at != cpu);
            let (what, value) = match kind {
                0 => (What::Enqueue, 0),
                1 | 2 if is_busy || runs_elsewhere => (What::Wake, 0),
                1 | 2 => (What::Run, 0),
                3 => (What::Block, 0),
                _ => (What::Nice, u64::from(pid * 3)),
            };
            if matches!(what, What::Enqueue | What::Block) {
                running.retain(|_, other| *other != pid);
            } else if what == What::Run {
                running.insert(cpu, pid);
            }
            records.push(Record { time_ns, cpu, what, pid, value });
        }
        records
    })
}

fn model(records: &[Record]) -> Model {
    let mut builder = Builder::new(&Header::of(&Topology::flat(CPUS)));
    records.iter().for_each(|record| builder.record(record));
    builder.finish()
}

/// The tiles of the three upper depths that begin before the end.
fn tiles(model: &Model) -> Vec<TileId> {
    (0..=model.division().deepest().min(2))
        .flat_map(|depth| (0..1 << depth).map(move |index| TileId { depth, index }))
        .collect()
}

struct Reading<'a>(&'a [u8]);

impl Reading<'_> {
    fn number(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.0[0];
            self.0 = &self.0[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    fn signed(&mut self) -> i64 {
        let value = self.number();
        (value >> 1) as i64 ^ -((value & 1) as i64)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn bins_count_every_change(records in records()) {
        let model = model(&records);
        let moments = plainly(&records, model.end_ns);
        for id in tiles(&model) {
            let Some(all) = model.bins(id) else { continue };
            let bin_ns = model.division().bin_ns >> id.depth;
            for (moments, bins) in moments.iter().zip(&all) {
                for bin in 0..BINS {
                    let begin_ns = (id.index * BINS as u64 + bin as u64) * bin_ns;
                    let part = moments.get(begin_ns as usize..).unwrap_or(&[]);
                    let part = &part[..part.len().min(bin_ns as usize)];
                    let mean = |of: fn(&Moment) -> u32| part.iter().map(|one| f64::from(of(one))).sum::<f64>() / part.len().max(1) as f64;
                    let near = |seen: f32, is: f64| (f64::from(seen) - is).abs() <= is * 0.001;
                    prop_assert!(near(bins.tasks_mean[bin], mean(|one| one.tasks)));
                    prop_assert!(near(bins.load_mean[bin], mean(|one| one.load)));
                    let least = part.iter().map(|one| one.tasks).min().unwrap_or_default();
                    let most = part.iter().map(|one| one.tasks).max().unwrap_or_default();
                    prop_assert_eq!((u32::from(bins.tasks_min[bin]), u32::from(bins.tasks_max[bin])), (least, most));
                    let least = part.iter().map(|one| one.load).min().unwrap_or_default();
                    let most = part.iter().map(|one| one.load).max().unwrap_or_default();
                    prop_assert_eq!((bins.load_min[bin], bins.load_max[bin]), (least, most));
                    let share = |ns: usize| (ns as u64 * 255).div_ceil(bin_ns) as u8;
                    prop_assert_eq!(bins.busy[bin], share(part.iter().filter(|one| one.runs.is_some()).count()));
                    let ran = |pid| part.iter().filter(|one| one.runs == Some(pid)).count();
                    prop_assert_eq!(bins.longest_share[bin], share((1..6).map(ran).max().unwrap()));
                    if bins.longest[bin] != NO_TASK {
                        let pid = model.tasks[bins.longest[bin] as usize].pid;
                        prop_assert_eq!(bins.longest_share[bin], share(ran(pid)));
                    }
                }
            }
        }
    }

    #[test]
    fn tiles_with_few_events_have_them_all(records in records()) {
        let model = model(&records);
        let moments = plainly(&records, model.end_ns);
        for id in tiles(&model) {
            let Some(tile) = model.tile(id) else { continue };
            prop_assert_eq!(&tile[0..4], &[1, 0, 0, 0]);
            let mut input = Reading(&tile[16..]);
            let begin_ns = (model.division().bin_ns >> id.depth) * BINS as u64 * id.index;
            let end_ns = model.end_ns.min(begin_ns + (model.division().bin_ns >> id.depth) * BINS as u64);
            for moments in &moments {
                let mut seen = vec![Moment::default(); model.end_ns as usize];
                let mut state = (begin_ns, input.number() as u32, input.number() as i64);
                for left in (0..=input.number()).rev() {
                    let next = if left == 0 { (end_ns, 0, 0) } else {
                        (state.0 + input.number(), input.number() as u32, state.2 + input.signed())
                    };
                    for moment in &mut seen[state.0 as usize..(next.0 as usize).max(state.0 as usize)] {
                        (moment.tasks, moment.load) = (state.1, state.2 as u32);
                    }
                    state = next;
                }
                let mut time_ns = begin_ns as i64;
                for _ in 0..input.number() {
                    time_ns += input.signed();
                    let run = time_ns as u64..time_ns as u64 + input.number();
                    let pid = model.tasks[input.number() as usize].pid;
                    input.number();
                    for ns in run {
                        seen[ns as usize].runs = Some(pid);
                    }
                }
                let time = begin_ns.min(end_ns) as usize..end_ns as usize;
                prop_assert_eq!(&seen[time.clone()], &moments[time]);
            }
            prop_assert_eq!([input.number(), input.number()], [0, 0], "decisions, notes");
            prop_assert!(input.0.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_a_file_holds_can_be_shown(
        records in prop::collection::vec((any::<u64>(), 0..CPUS, 0..What::ALL.len(), any::<u8>(), any::<u64>()), 1..200),
    ) {
        let records: Vec<Record> = records
            .into_iter()
            .map(|(time_ns, cpu, what, pid, value)| {
                // Few PIDs, so that they come again, and the greatest.
                let pid = if pid == 0 { u32::MAX } else { u32::from(pid % 8) };
                Record { time_ns: time_ns >> (value % 64), cpu, what: What::ALL[what], pid, value }
            })
            .collect();
        let model = model(&records);
        let header = Header::of(&Topology::flat(CPUS));
        let report = ekiden_page::report(&header, &model, &Verdict::default(), &Notes::default(), REPORT_BYTES_MAX).unwrap();
        prop_assert!(report.contains("window.ekidenPartial=false"));
        for id in tiles(&model) {
            model.bins(id);
        }
    }
}

#[test]
fn a_report_is_not_longer_than_it_may_be_and_says_what_it_lacks() {
    let at = |time_ns, what, pid| Record { time_ns, cpu: (pid % 3) as u32, what, pid: pid as u32, value: 0 };
    let rounds = (0..30_000).flat_map(|round| {
        let (time_ns, pid) = (round * 977, round % 89);
        [at(time_ns, What::Enqueue, pid), at(time_ns + 13 * pid, What::Run, pid), at(time_ns + 900, What::Block, pid)]
    });
    let mut records: Vec<Record> = rounds.collect();
    records.sort_by_key(|record| record.time_ns);
    let model = model(&records);
    let header = Header::of(&Topology::flat(CPUS));
    let of =
        |bytes_max| ekiden_page::report(&header, &model, &Verdict::default(), &Notes::default(), bytes_max).unwrap();
    let whole = of(REPORT_BYTES_MAX);
    assert!(whole.contains("window.ekidenPartial=false"));
    let bytes_max = whole.len() - 10_000;
    let part = of(bytes_max);
    assert!(part.contains("window.ekidenPartial=true") && part.len() <= bytes_max, "{} of {bytes_max}", part.len());
}

#[test]
fn considered_cpus_are_counted_where_they_were_looked_at() {
    let header = Header::of(&Topology::flat(70));
    let mut builder = Builder::new(&header);
    let looked: CpuMask = [1, 2, 69].into_iter().collect();
    for (piece, value) in (0..).zip(ekiden_trace::masks(&looked, 70)) {
        builder.record(&Record { time_ns: 5, cpu: piece, what: What::Considered, pid: 7, value });
    }
    builder.record(&Record { time_ns: 5, cpu: 69, what: What::Enqueue, pid: 7, value: 0 });
    builder.record(&Record { time_ns: 600, cpu: 69, what: What::Idle, pid: 0, value: 0 });
    let model = builder.finish();
    assert_eq!(model.decisions.len(), 1);
    assert_eq!((model.decisions[0].cpu, model.decisions[0].what), (69, What::Enqueue));
    let bins = model.bins(TileId::ROOT).unwrap();
    let counted: Vec<usize> =
        (0..70).filter(|cpu| bins[*cpu].considered[5 / model.division().bin_ns as usize] == 1).collect();
    assert_eq!(counted, [1, 2, 69]);
    assert_eq!(bins.iter().flat_map(|bins| &bins.considered).map(|count| u32::from(*count)).sum::<u32>(), 3);
}

/// The notes in a tile of a trace that has nothing else: time, CPU, task + 1, name, value.
fn notes_of(model: &Model, id: TileId) -> Vec<[u64; 5]> {
    let tile = model.tile(id).unwrap();
    let mut reading = Reading(&tile[16..]);
    for _ in 0..CPUS {
        let quiet = [0; 4].map(|_: u64| reading.number());
        assert_eq!(quiet, [0; 4], "tasks, load, changes, runs");
    }
    assert_eq!(reading.number(), 0, "decisions");
    let count = reading.number();
    let notes = (0..count).map(|_| [0; 5].map(|_: u64| reading.number())).collect();
    assert!(reading.0.is_empty());
    notes
}

#[test]
fn what_a_policy_notes_is_told_with_its_name_where_it_was_noted() {
    let note = |time_ns, cpu, pid, name, value| {
        let at = Record { time_ns, cpu, what: What::Note, pid, value: 0 };
        noted(Noted { name: NoteName::new(name).unwrap(), value }, at).collect::<Vec<_>>()
    };
    let notes = [
        note(5, 1, 7, "down_to_level", 3),
        note(5, 1, 0, "of_more_than_eight_bytes", u64::MAX),
        note(700, 0, 7, "down_to_level", 1),
    ];
    let model = model(&notes.concat());
    let names: Vec<&str> = model.note_kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names, ["down_to_level", "of_more_than_eight_bytes"]);
    assert_eq!(notes_of(&model, TileId::ROOT), [[5, 1, 1, 0, 3], [0, 1, 0, 1, u64::MAX], [695, 0, 1, 0, 1]]);
    // Each is in the half that it belongs to.
    let [first, second] = TileId::ROOT.halves();
    assert_eq!((notes_of(&model, first).len(), notes_of(&model, second).len()), (2, 1));
    let bins = model.bins(TileId::ROOT).unwrap();
    let counted = |cpu: usize| bins[cpu].notes.iter().map(|count| u32::from(*count)).collect::<Vec<_>>();
    assert_eq!((counted(0).iter().sum::<u32>(), counted(1)[5 / model.division().bin_ns as usize]), (1, 2));
}

#[test]
fn what_is_said_in_queues_of_hints_is_told_where_it_was_said() {
    let said = |time_ns, queue, what, times| {
        let value = QueueNote { queue, what, times }.to_value();
        Record { time_ns, cpu: 2, what: What::Queue, pid: 9, value }
    };
    let model = model(&[
        said(10, 4, InQueue::Opened, 1),
        said(20, 4, InQueue::Heard, 3),
        said(30, 5, InQueue::Heard, 1),
        said(30, 4, InQueue::Heard, 2),
    ]);
    let names: Vec<&str> = model.note_kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names, ["queue 4 opened", "queue 4, hints heard", "queue 5, hints heard"]);
    assert_eq!(notes_of(&model, TileId::ROOT), [[10, 2, 1, 0, 1], [10, 2, 1, 1, 3], [10, 2, 1, 2, 1], [0, 2, 1, 1, 2]]);
    assert_eq!((model.queues[&4].hints, model.queues[&5].hints), (5, 1));
}

#[test]
fn the_weight_of_a_group_is_shared_by_its_tasks() {
    let at = |time_ns, cpu, what, pid, value| Record { time_ns, cpu, what, pid, value };
    let model = model(&[
        at(0, 0, What::Group, 1, 7),
        at(0, 0, What::Group, 2, 7),
        at(10, 0, What::Enqueue, 1, 0),
        at(20, 0, What::Enqueue, 3, 0),
        at(30, 1, What::Enqueue, 2, 0),
        at(40, 1, What::Exit, 2, 0),
        at(50, 0, What::Nice, 1, 5),
        at(60, 0, What::Block, 3, 0),
    ]);
    let loads = |cpu: usize| model.lanes[cpu].changes.iter().map(|one| (one.time_ns, one.load)).collect::<Vec<_>>();
    assert_eq!(loads(0), [(0, 0), (10, 512), (20, 1536), (50, 1024 + 335), (60, 335)]);
    assert_eq!(loads(1), [(0, 0), (30, 512), (40, 0)]);
}

#[test]
fn tiles_that_are_not_there_are_refused() {
    let model = model(&[Record { time_ns: 10_000, cpu: 0, what: What::Idle, pid: 0, value: 0 }]);
    for id in [(0, 1), (1, 2), (60, 0), (u32::MAX, u64::MAX), (3, u64::MAX)] {
        assert_eq!(model.tile(TileId { depth: id.0, index: id.1 }), None, "{id:?}");
    }
}

#[test]
fn waits_are_told_by_program_and_cause() {
    let at = |time_ns, what, pid| Record { time_ns, cpu: 0, what, pid, value: 0 };
    let model = model(&[
        at(0, What::Wake, 1),
        at(10, What::Enqueue, 1),
        at(110, What::Run, 1),
        at(200, What::Preempt, 1),
        at(200, What::Enqueue, 1),
        at(260, What::Run, 1),
    ]);
    let waits = &model.waits[0];
    assert_eq!((waits.wake.count, waits.wake.max_ns), (1, 110));
    assert_eq!((waits.queue.count, waits.queue.sum_ns, waits.queue.max_ns), (2, 160, 100));
    assert_eq!((model.lanes[0].runs[0].waited_ns, model.lanes[0].runs[0].woken), (100, true));
    assert_eq!(model.counters.busy_ns, 90);
}
