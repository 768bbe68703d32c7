//! What a policy counts for people: figures of its own, which every host shows.

use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};
use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{CpuId, Cx, Fingerprint, Layout};

/// How many figures a policy can have.
const FIGURES_MAX: usize = 16;

/// The longest name and the longest help, in bytes.
const NAME_MAX: usize = 32;
const HELP_MAX: usize = 120;

/// Buckets of a histogram: 0, 1, 2 to 3, 4 to 7, and so on by powers of two.
const BUCKETS: usize = 64;

/// Words of a cache line, so that two CPUs count in lines of their own.
const LINE: usize = 8;

/// A number that grows: how often something has happened. Made by [`Env::counter`](crate::Env::counter).
///
/// An addition costs one atomic addition in a cache line of the CPU that the call is about. It survives a live upgrade with the
/// state that it is in. A policy cannot read it, so that no decision depends on it.
///
/// ```
/// use ekiden::prelude::*;
///
/// /// First come, first served, and counts how often a task goes to a CPU that is not idle.
/// #[derive(Layout)]
/// struct Counting {
///     queues: PerCpu<SpinLock<FifoQueue<Self>>>,
///     crowded: Counter,
/// }
///
/// #[policy]
/// impl Scheduler for Counting {
///     fn new(env: &Env) -> Self {
///         Self {
///             queues: PerCpu::new(env, |_| SpinLock::default()),
///             crowded: env.counter("crowded", "tasks that came to a CPU where another one waits"),
///         }
///     }
///
///     fn enqueue(&self, cx: &Cx, _: &Task, token: Schedulable<Self>) {
///         let mut queue = self.queues[token.cpu()].lock();
///         if !queue.is_empty() {
///             self.crowded.add(cx, 1);
///         }
///         queue.push_back(token);
///     }
/// #
/// #     fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> { self.queues[cpu].lock().pop_front() }
/// }
///
/// # use ekiden::Call;
/// let mut machine = ekiden_example_host::Machine::<Counting>::flat(2);
/// machine.wait(Call::TaskNew, 1, 0);
/// machine.wait(Call::TaskNew, 2, 0);
/// assert_eq!(machine.figure("crowded").to_string(), "1");
/// ```
#[derive(Debug)]
pub struct Counter(Arc<Cells>);

impl Counter {
    /// Adds to it.
    #[inline]
    pub fn add(&self, cx: &Cx<'_>, amount: u64) {
        self.0.add(cx.cpu(), 0, amount);
    }
}

/// How often values were how large, by powers of two. Made by [`Env::histogram`](crate::Env::histogram).
///
/// Costs as much as a [`Counter`], and 512 bytes for each CPU.
///
/// ```
/// use ekiden::prelude::*;
///
/// /// First come, first served, and counts how long tasks run until they sleep.
/// #[derive(Layout)]
/// struct Counting {
///     queues: PerCpu<SpinLock<FifoQueue<Self>>>,
///     runtimes: Histogram,
/// }
///
/// #[policy]
/// impl Scheduler for Counting {
///     fn new(env: &Env) -> Self {
///         Self {
///             queues: PerCpu::new(env, |_| SpinLock::default()),
///             runtimes: env.histogram("runtime_ns", "CPU time that a task has had when it sleeps"),
///         }
///     }
///
///     fn task_blocked(&self, cx: &Cx, task: &Task) {
///         self.runtimes.record(cx, task.runtime_ns);
///     }
/// #
/// #     fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) { self.queues[token.cpu()].lock().push_back(token) }
/// #     fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> { self.queues[cpu].lock().pop_front() }
/// }
///
/// # use ekiden::Call;
/// let mut machine = ekiden_example_host::Machine::<Counting>::flat(1);
/// machine.call(Call::TaskBlocked, 1, 0);
/// // One value of 0.
/// assert_eq!(machine.figure("runtime_ns").to_string(), "0+: 1");
/// ```
#[derive(Debug)]
pub struct Histogram(Arc<Cells>);

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&self, cx: &Cx<'_>, value: u64) {
        self.0.add(cx.cpu(), bucket_of(value), 1);
    }
}

impl Layout for Counter {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("Counter");
}

impl Layout for Histogram {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("Histogram");
}

#[inline]
fn bucket_of(value: u64) -> usize {
    ((u64::BITS - value.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// The smallest value of a bucket.
fn least_of(bucket: usize) -> u64 {
    if bucket == 0 { 0 } else { 1 << (bucket - 1) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter = 1,
    Histogram = 2,
}

impl Kind {
    const fn words(self) -> usize {
        match self {
            Self::Counter => 1,
            Self::Histogram => BUCKETS,
        }
    }
}

/// A figure with its name, and its words for each CPU.
#[derive(Debug)]
struct Cells {
    // Owned: the module that named it may be gone when its successor still counts.
    name: String,
    help: String,
    kind: Kind,
    words: Box<[AtomicU64]>,
}

impl Cells {
    #[inline]
    fn add(&self, cpu: CpuId, word: usize, amount: u64) {
        let first = cpu as usize * self.kind.words().next_multiple_of(LINE);
        if let Some(word) = self.words.get(first + word) {
            // Another CPU may be in a call about the same one.
            word.fetch_add(amount, Relaxed);
        }
    }

    /// The counts of a CPU.
    fn of_cpu(&self, cpu: CpuId) -> impl Iterator<Item = u64> {
        let words = self.kind.words();
        let first = cpu as usize * words.next_multiple_of(LINE);
        self.words.iter().skip(first).take(words).map(|word| word.load(Relaxed))
    }
}

/// The figures that a policy has, in the order in which it has made them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared(RefCell<Vec<Arc<Cells>>>);

impl Declared {
    fn declare(&self, nr_cpus: CpuId, name: &str, help: &str, kind: Kind) -> Arc<Cells> {
        let mut known = self.0.borrow_mut();
        let is_named = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        assert!(
            (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_named),
            "a figure's name has 1 to {NAME_MAX} letters, digits and underscores, and {name:?} has not"
        );
        assert!(
            help.len() <= HELP_MAX && !help.contains(char::is_control),
            "the help of figure {name} is one line of at most {HELP_MAX} bytes"
        );
        assert!(known.len() < FIGURES_MAX, "a policy has at most {FIGURES_MAX} figures, and {name} is one more");
        assert!(known.iter().all(|figure| figure.name != name), "there are two figures {name}");
        let words = nr_cpus as usize * kind.words().next_multiple_of(LINE);
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        let cells = Arc::new(Cells { name: name.into(), help: help.into(), kind, words });
        known.push(cells.clone());
        cells
    }

    pub(crate) fn counter(&self, nr_cpus: CpuId, name: &str, help: &str) -> Counter {
        Counter(self.declare(nr_cpus, name, help, Kind::Counter))
    }

    pub(crate) fn histogram(&self, nr_cpus: CpuId, name: &str, help: &str) -> Histogram {
        Histogram(self.declare(nr_cpus, name, help, Kind::Histogram))
    }

    /// Hands them over to the policy's surroundings.
    pub(crate) fn take(&self) -> Figures {
        Figures(self.0.take())
    }
}

/// The figures of a policy that runs, for its host. A copy shows the same ones.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<Arc<Cells>>);

impl Figures {
    /// Adds the figures of a predecessor that its state has brought along.
    pub(crate) fn with_older(mut self, mut older: Self) -> Self {
        older.0.retain(|old| Arc::strong_count(old) > 1 && self.0.iter().all(|new| new.name != old.name));
        older.0.append(&mut self.0);
        older
    }

    /// All of them, summed up over the CPUs.
    pub fn totals(&self) -> Vec<Figure> {
        let nr_words = |cells: &Cells| cells.words.len() / cells.kind.words().next_multiple_of(LINE);
        let total = |cells: &Arc<Cells>| {
            let mut words = alloc::vec![0; cells.kind.words()];
            for cpu in 0..nr_words(cells) as CpuId {
                words.iter_mut().zip(cells.of_cpu(cpu)).for_each(|(sum, word)| *sum += word);
            }
            Figure::new(&cells.name, &cells.help, cells.kind, &words)
        };
        self.0.iter().map(total).collect()
    }

    /// Writes down what there is, for [`Figure::read`] in another program. The number of bytes; `None` if there is no room.
    pub fn describe(&self, room: &mut [u8]) -> Option<usize> {
        let mut used = 0;
        let mut put = |bytes: &[u8]| {
            room.get_mut(used..used + bytes.len())?.copy_from_slice(bytes);
            used += bytes.len();
            Some(())
        };
        for cells in &self.0 {
            put(&[cells.kind as u8])?;
            put(cells.name.as_bytes())?;
            put(&[0])?;
            put(cells.help.as_bytes())?;
            put(&[0])?;
        }
        Some(used)
    }

    /// Writes down what was counted for a CPU, in the same order. The number of words; `None` if there is no room. Cost: a load for each.
    pub fn of_cpu(&self, cpu: CpuId, room: &mut [u64]) -> Option<usize> {
        let mut used = 0;
        for cells in &self.0 {
            for word in cells.of_cpu(cpu) {
                *room.get_mut(used)? = word;
                used += 1;
            }
        }
        Some(used)
    }
}

/// A figure as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Figure {
    /// The policy's name for it.
    pub name: String,
    /// A description in one sentence.
    pub help: String,
    /// How much it is.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub value: Value,
}

/// How much a figure is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Value {
    /// What a counter has counted.
    Count(u64),
    /// A histogram: the smallest value of each bucket that is not empty, and how many values are in it.
    Buckets(Vec<(u64, u64)>),
}

impl core::fmt::Display for Value {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Buckets(buckets) => {
                for (place, (least, count)) in buckets.iter().enumerate() {
                    write!(f, "{}{least}+: {count}", if place == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

impl Figure {
    fn new(name: &str, help: &str, kind: Kind, words: &[u64]) -> Self {
        let value = match kind {
            Kind::Counter => Value::Count(words.first().copied().unwrap_or(0)),
            Kind::Histogram => {
                let full = words.iter().enumerate().filter(|(_, count)| **count > 0);
                Value::Buckets(full.map(|(bucket, count)| (least_of(bucket), *count)).collect())
            }
        };
        Self { name: name.into(), help: help.into(), value }
    }

    /// What [`Figures::describe`] has written, with the sums of [`Figures::of_cpu`]. Ends where something makes no sense.
    pub fn read<'a>(mut description: &'a [u8], mut words: &'a [u64]) -> impl Iterator<Item = Self> + 'a {
        fn text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
            let end = from.iter().position(|byte| *byte == 0)?;
            let (text, rest) = from.split_at(end);
            *from = &rest[1..];
            core::str::from_utf8(text).ok()
        }
        core::iter::from_fn(move || {
            let (kind, rest) = description.split_first()?;
            let kind = match kind {
                1 => Kind::Counter,
                2 => Kind::Histogram,
                _ => return None,
            };
            description = rest;
            let (name, help) = (text(&mut description)?, text(&mut description)?);
            let (own, rest) = words.split_at_checked(kind.words())?;
            words = rest;
            Some(Self::new(name, help, kind, own))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn values_are_counted_in_the_bucket_that_begins_at_or_below_them() {
        for (value, least) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (1_000, 512), (u64::MAX, 1 << 62)] {
            assert_eq!(least_of(bucket_of(value)), least, "{value}");
        }
    }

    #[test]
    fn what_one_program_describes_another_one_reads() {
        let declared = Declared::default();
        let (steals, waits) = (declared.counter(3, "steals", "tasks taken"), declared.histogram(3, "wait_ns", ""));
        steals.0.add(0, 0, 2);
        steals.0.add(2, 0, 5);
        waits.0.add(1, bucket_of(700), 1);
        // A CPU that is not there counts for nothing.
        steals.0.add(3, 0, 1);
        let figures = declared.take();
        let totals = figures.totals();
        assert_eq!(totals[0].value, Value::Count(7));
        assert_eq!(totals[1].value.to_string(), "512+: 1");
        let (mut text, mut words, mut sums) = ([0; 64], [0; 65], [0; 65]);
        let len = figures.describe(&mut text).unwrap();
        for cpu in 0..3 {
            assert_eq!(figures.of_cpu(cpu, &mut words), Some(65));
            sums.iter_mut().zip(words).for_each(|(sum, word)| *sum += word);
        }
        assert_eq!(Figure::read(&text[..len], &sums).collect::<Vec<_>>(), totals);
        assert_eq!((figures.describe(&mut [0; 20]), figures.of_cpu(0, &mut [0; 64])), (None, None));
    }

    #[test]
    fn a_successor_keeps_the_figures_that_its_state_has_brought_along() {
        let (old, new) = (Declared::default(), Declared::default());
        let (kept, gone) = (old.counter(1, "kept", ""), old.counter(1, "gone", ""));
        kept.0.add(0, 0, 4);
        let older = old.take();
        drop(gone);
        let fresh = new.counter(1, "fresh", "");
        let names = new.take().with_older(older).totals();
        assert_eq!(names.iter().map(|figure| figure.name.as_str()).collect::<Vec<_>>(), ["kept", "fresh"]);
        assert_eq!(names[0].value, Value::Count(4));
        drop((kept, fresh));
    }

    #[test]
    #[should_panic = "there are two figures steals"]
    fn two_figures_of_one_name_are_refused() {
        let declared = Declared::default();
        declared.counter(1, "steals", "");
        declared.histogram(1, "steals", "");
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), words in proptest::collection::vec(any::<u64>(), 0..80)) {
            prop_assert!(Figure::read(&bytes, &words).count() <= bytes.len());
        }
    }
}
