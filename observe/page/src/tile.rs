//! Level of detail: a binary tree of tiles over time.
//!
//! The tile at depth 0 covers the whole trace, the two below it half of its time each. A tile with few events has all of
//! them, exactly as they were. One with more has [`BINS`] bins for each CPU, and a bin counts every change in its time;
//! nothing is sampled. The page takes the tiles whose bins are just finer than a pixel.
//!
//! Numbers are little-endian. A tile begins with 16 bytes: 0 for bins or 1 for events, depth, number of CPUs, and of bins.
//! Bins are followed by twelve planes, each with the bins of CPU 0, then those of CPU 1, and so on: see [`Bins`]. Events
//! are followed by LEB128 numbers, those marked with a sign in zigzag form, times as differences to the one before:
//!
//! | of each CPU | |
//! | --- | --- |
//! | its run queue when the tile begins | tasks, load |
//! | changes | how many; of each: time, tasks, load (signed, difference to the one before) |
//! | runs | how many; of each: begin (signed, to the beginning of the tile or of the run before), length, task, time waited × 2 + 1 if woken |
//!
//! Then the decisions: how many; of each: time, CPU, task + 1 or 0, what (see [`ekiden_trace::What`]), and the CPUs considered: how
//! many, and the differences between them. And at the end the notes: how many; of each: time, CPU, task + 1 or 0, kind (its place
//! in the summary), value.

use std::ops::Range;

use crate::{Change, Decision, Model, NO_TASK, Note, Run};

/// Bins of a tile, for each CPU.
pub const BINS: usize = 512;

/// Up to this many changes, runs, decisions and notes are listed one by one.
const EVENTS_MAX: usize = 16_384;

/// Which tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileId {
    /// How often time has been halved.
    pub depth: u32,
    /// Which of the tiles of that depth, in the order of time.
    pub index: u64,
}

impl TileId {
    /// The whole trace.
    pub const ROOT: Self = Self { depth: 0, index: 0 };

    /// Its two halves.
    pub fn halves(self) -> [Self; 2] {
        [0, 1].map(|half| Self { depth: self.depth + 1, index: self.index * 2 + half })
    }
}

/// The bins of one CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Bins {
    /// Mean number of tasks.
    pub tasks_mean: Vec<f32>,
    /// Mean load.
    pub load_mean: Vec<f32>,
    /// The lowest load.
    pub load_min: Vec<u32>,
    /// The highest load.
    pub load_max: Vec<u32>,
    /// The task that ran longest, or [`NO_TASK`].
    pub longest: Vec<u32>,
    /// The fewest tasks.
    pub tasks_min: Vec<u16>,
    /// The most tasks.
    pub tasks_max: Vec<u16>,
    /// How many runs began.
    pub runs: Vec<u16>,
    /// How many decisions considered this CPU.
    pub considered: Vec<u16>,
    /// How many notes are about this CPU.
    pub notes: Vec<u16>,
    /// Share of the bin in which a task ran, of 255.
    pub busy: Vec<u8>,
    /// Share of the bin in which the task ran that ran longest, of 255.
    pub longest_share: Vec<u8>,
}

impl Bins {
    /// Bytes of each bin.
    const LEN: usize = 32;

    fn new() -> Self {
        Self {
            tasks_mean: vec![0.0; BINS],
            load_mean: vec![0.0; BINS],
            load_min: vec![0; BINS],
            load_max: vec![0; BINS],
            longest: vec![NO_TASK; BINS],
            tasks_min: vec![0; BINS],
            tasks_max: vec![0; BINS],
            runs: vec![0; BINS],
            considered: vec![0; BINS],
            notes: vec![0; BINS],
            busy: vec![0; BINS],
            longest_share: vec![0; BINS],
        }
    }
}

/// How time is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Width of a bin of the tile at depth 0, in nanoseconds: a power of two.
    pub bin_ns: u64,
    end_ns: u64,
}

impl Division {
    /// For a trace that ends at `end_ns`.
    pub fn of(end_ns: u64) -> Self {
        Self { bin_ns: (end_ns / BINS as u64 + 1).next_power_of_two(), end_ns }
    }

    /// The depth at which a bin is a nanosecond.
    pub fn deepest(self) -> u32 {
        self.bin_ns.trailing_zeros()
    }

    /// The time that a tile covers; `None` if there is no such tile.
    fn time(self, id: TileId) -> Option<Range<u64>> {
        if id.depth > self.deepest() {
            return None;
        }
        let span_ns = (self.bin_ns >> id.depth) * BINS as u64;
        let begin_ns = id.index.checked_mul(span_ns).filter(|begin_ns| *begin_ns <= self.end_ns)?;
        Some(begin_ns..begin_ns + span_ns)
    }
}

/// Where the values of a sorted slice lie that belong to a time.
fn part<T>(all: &[T], time: &Range<u64>, begin_of: impl Fn(&T) -> u64, end_of: impl Fn(&T) -> u64) -> Range<usize> {
    let first = all.partition_point(|one| end_of(one) <= time.start);
    first..all.partition_point(|one| begin_of(one) < time.end).max(first)
}

/// What a model has in the time of a tile.
struct Inside<'a> {
    time: Range<u64>,
    /// By CPU: how its run queue is at the beginning, its changes after that, its runs.
    cpus: Vec<(Change, &'a [Change], &'a [Run])>,
    decisions: &'a [Decision],
    notes: &'a [Note],
}

impl Model {
    /// How the time of this trace is divided.
    pub fn division(&self) -> Division {
        Division::of(self.end_ns)
    }

    fn inside(&self, time: Range<u64>) -> Inside<'_> {
        let cpus = self.lanes.iter().map(|lane| {
            let after = lane.changes.partition_point(|change| change.time_ns <= time.start);
            let before = lane.changes[..after].last().copied();
            let until = lane.changes.partition_point(|change| change.time_ns < time.end).max(after);
            let runs = part(&lane.runs, &time, |run| run.begin_ns, |run| run.end_ns);
            let none = Change { time_ns: 0, tasks: 0, load: 0 };
            (before.unwrap_or(none), &lane.changes[after..until], &lane.runs[runs])
        });
        let decisions = part(&self.decisions, &time, |one| one.time_ns, |one| one.time_ns + 1);
        let notes = part(&self.notes, &time, |one| one.time_ns, |one| one.time_ns + 1);
        Inside { cpus: cpus.collect(), decisions: &self.decisions[decisions], notes: &self.notes[notes], time }
    }

    /// Whether a tile tells every event one by one; `None` if there is no such tile.
    pub fn is_exact(&self, id: TileId) -> Option<bool> {
        Some(self.inside(self.division().time(id)?).count() <= EVENTS_MAX)
    }

    /// A tile; `None` if there is none with this name. Costs nanoseconds for each event inside.
    pub fn tile(&self, id: TileId) -> Option<Vec<u8>> {
        let inside = self.inside(self.division().time(id)?);
        let is_exact = inside.count() <= EVENTS_MAX;
        let head = [u32::from(is_exact), id.depth, self.lanes.len() as u32, BINS as u32];
        let mut bytes: Vec<u8> = head.iter().flat_map(|number| number.to_le_bytes()).collect();
        if is_exact {
            inside.write_events(&mut bytes);
        } else {
            write_bins(&inside.bins(self.tasks.len(), self.end_ns), &mut bytes);
        }
        Some(bytes)
    }

    /// The bins of a time, whether there is a tile of it or not; of each CPU.
    pub fn bins(&self, id: TileId) -> Option<Vec<Bins>> {
        Some(self.inside(self.division().time(id)?).bins(self.tasks.len(), self.end_ns))
    }
}

impl Inside<'_> {
    fn count(&self) -> usize {
        let of_cpus: usize = self.cpus.iter().map(|(_, changes, runs)| changes.len() + runs.len()).sum();
        of_cpus + self.decisions.len() + self.notes.len()
    }

    /// CPUs are shared out among threads: they have nothing to do with each other.
    fn bins(&self, nr_tasks: usize, end_ns: u64) -> Vec<Bins> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = self.cpus.len().div_ceil(threads).max(1);
        let (time, until_ns) = (&self.time, self.time.end.min(end_ns));
        let mut all: Vec<Bins> = std::thread::scope(|scope| {
            let works: Vec<_> = self
                .cpus
                .chunks(share)
                .map(|cpus| {
                    scope.spawn(move || {
                        let mut ran_ns = vec![0; nr_tasks];
                        let bins = cpus.iter().map(|(first, changes, runs)| {
                            let mut bins = Bins::new();
                            fill_queue(&mut bins, time, until_ns, *first, changes);
                            fill_runs(&mut bins, time, runs, &mut ran_ns);
                            bins
                        });
                        bins.collect::<Vec<_>>()
                    })
                })
                .collect();
            works.into_iter().flat_map(|work| work.join().expect("filling bins does not panic")).collect()
        });
        let bin_ns = (time.end - time.start) / BINS as u64;
        for decision in self.decisions {
            let bin = ((decision.time_ns - time.start) / bin_ns) as usize;
            for cpu in cpus_in(&decision.considered) {
                if let Some(bins) = all.get_mut(cpu as usize) {
                    bins.considered[bin] = bins.considered[bin].saturating_add(1);
                }
            }
        }
        for note in self.notes {
            if let Some(bins) = all.get_mut(note.cpu as usize) {
                let count = &mut bins.notes[((note.time_ns - time.start) / bin_ns) as usize];
                *count = count.saturating_add(1);
            }
        }
        all
    }

    fn write_events(&self, to: &mut Vec<u8>) {
        let begin_ns = self.time.start;
        for (first, changes, runs) in &self.cpus {
            number(to, first.tasks.into());
            number(to, first.load.into());
            number(to, changes.len() as u64);
            let (mut time_ns, mut load) = (begin_ns, i64::from(first.load));
            for change in *changes {
                number(to, change.time_ns - time_ns);
                number(to, change.tasks.into());
                signed(to, i64::from(change.load) - load);
                (time_ns, load) = (change.time_ns, change.load.into());
            }
            number(to, runs.len() as u64);
            let mut time_ns = begin_ns;
            for run in *runs {
                signed(to, run.begin_ns.wrapping_sub(time_ns) as i64);
                number(to, run.end_ns - run.begin_ns);
                number(to, run.task.into());
                number(to, run.waited_ns << 1 | u64::from(run.woken));
                time_ns = run.begin_ns;
            }
        }
        number(to, self.decisions.len() as u64);
        let mut time_ns = begin_ns;
        for decision in self.decisions {
            number(to, decision.time_ns - time_ns);
            number(to, decision.cpu.into());
            number(to, u64::from(decision.task.wrapping_add(1)));
            number(to, decision.what as u64);
            number(to, decision.considered.iter().map(|word| u64::from(word.count_ones())).sum());
            let mut before = 0;
            for cpu in cpus_in(&decision.considered) {
                number(to, u64::from(cpu - before));
                before = cpu;
            }
            time_ns = decision.time_ns;
        }
        number(to, self.notes.len() as u64);
        let mut time_ns = begin_ns;
        for note in self.notes {
            number(to, note.time_ns - time_ns);
            number(to, note.cpu.into());
            number(to, u64::from(note.task.wrapping_add(1)));
            number(to, note.kind.into());
            number(to, note.value);
            time_ns = note.time_ns;
        }
    }
}

/// The numbers of the bits that are set.
fn cpus_in(words: &[u64]) -> impl Iterator<Item = u32> {
    (0..)
        .zip(words)
        .flat_map(|(word, bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit))
}

/// Cuts a stretch of time at the borders of bins, whose width is a power of two: which bin, and how much of it.
fn cut(time: &Range<u64>, begin_ns: u64, end_ns: u64) -> impl Iterator<Item = (usize, u64)> {
    let shift = ((time.end - time.start) / BINS as u64).trailing_zeros();
    let (mut at_ns, end_ns) = (begin_ns.max(time.start) - time.start, end_ns.clamp(time.start, time.end) - time.start);
    std::iter::from_fn(move || {
        if at_ns >= end_ns {
            return None;
        }
        let bin = at_ns >> shift;
        let until_ns = ((bin + 1) << shift).min(end_ns);
        let ns = until_ns - at_ns;
        at_ns = until_ns;
        Some((bin as usize, ns))
    })
}

fn fill_queue(bins: &mut Bins, time: &Range<u64>, until_ns: u64, first: Change, changes: &[Change]) {
    let mut sums = [(0.0_f64, 0.0_f64, 0_u64); BINS];
    let begins = std::iter::once(Change { time_ns: time.start, ..first }).chain(changes.iter().copied());
    let ends = changes.iter().map(|change| change.time_ns).chain([until_ns]);
    for (change, end_ns) in begins.zip(ends) {
        let tasks = u16::try_from(change.tasks).unwrap_or(u16::MAX);
        for (bin, ns) in cut(time, change.time_ns, end_ns) {
            let (of_tasks, of_load, of_time) = &mut sums[bin];
            let is_first = *of_time == 0;
            *of_tasks += f64::from(change.tasks) * ns as f64;
            *of_load += f64::from(change.load) * ns as f64;
            *of_time += ns;
            bins.tasks_min[bin] = if is_first { tasks } else { bins.tasks_min[bin].min(tasks) };
            bins.tasks_max[bin] = bins.tasks_max[bin].max(tasks);
            bins.load_min[bin] = if is_first { change.load } else { bins.load_min[bin].min(change.load) };
            bins.load_max[bin] = bins.load_max[bin].max(change.load);
        }
    }
    for (bin, (of_tasks, of_load, of_time)) in sums.into_iter().enumerate().filter(|(_, (_, _, ns))| *ns > 0) {
        bins.tasks_mean[bin] = short(of_tasks / of_time as f64);
        bins.load_mean[bin] = short(of_load / of_time as f64);
    }
}

fn fill_runs(bins: &mut Bins, time: &Range<u64>, runs: &[Run], ran_ns: &mut [u64]) {
    let bin_ns = (time.end - time.start) / BINS as u64;
    // A bin is shorter than 2^54 ns.
    let share = |ns: u64| (ns * 255).div_ceil(bin_ns).min(255) as u8;
    let mut seen: Vec<u32> = Vec::new();
    let mut current = 0;
    let mut fill_bin = |bin: usize, seen: &mut Vec<u32>, ran_ns: &mut [u64]| {
        let mut all_ns = 0;
        let mut most = (0, NO_TASK);
        for task in seen.drain(..) {
            let ns = std::mem::take(&mut ran_ns[task as usize]);
            all_ns += ns;
            if ns > most.0 {
                most = (ns, task);
            }
        }
        bins.busy[bin] = share(all_ns);
        (bins.longest[bin], bins.longest_share[bin]) = (most.1, share(most.0));
    };
    for run in runs {
        if run.begin_ns >= time.start {
            let bin = ((run.begin_ns - time.start) / bin_ns) as usize;
            bins.runs[bin] = bins.runs[bin].saturating_add(1);
        }
        for (bin, ns) in cut(time, run.begin_ns, run.end_ns) {
            if bin != current {
                fill_bin(current, &mut seen, ran_ns);
                current = bin;
            }
            let so_far = &mut ran_ns[run.task as usize];
            if *so_far == 0 {
                seen.push(run.task);
            }
            *so_far += ns;
        }
    }
    fill_bin(current, &mut seen, ran_ns);
}

/// Three digits are enough for a colour, and compress well; whole numbers stay as they are.
fn short(value: f64) -> f32 {
    let bits = (value as f32).to_bits();
    f32::from_bits(bits.saturating_add(1 << 11) & !((1 << 12) - 1))
}

fn write_bins(all: &[Bins], to: &mut Vec<u8>) {
    to.reserve(all.len() * BINS * Bins::LEN);
    macro_rules! planes {
        ($($plane:ident),*) => {
            $(all.iter().flat_map(|bins| &bins.$plane).for_each(|value| to.extend(value.to_le_bytes()));)*
        };
    }
    planes!(tasks_mean, load_mean, load_min, load_max, longest);
    planes!(tasks_min, tasks_max, runs, considered, notes);
    planes!(busy, longest_share);
}

fn number(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn signed(to: &mut Vec<u8>, value: i64) {
    number(to, ((value << 1) ^ (value >> 63)) as u64);
}
