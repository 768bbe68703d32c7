//! What is going to happen, in order of time.

use ekiden::CpuId;

use crate::task::TaskIndex;

/// Something that will happen at a time. There is at most one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// The load is stopped.
    Stop,
    /// The next injection is due.
    Inject,
    /// A group of tasks gets new CPU time.
    Refill,
    /// The task that runs on the CPU has done its work.
    Work(CpuId),
    /// The CPU's tick.
    Tick(CpuId),
    /// The policy's timer on the CPU.
    Timer(CpuId),
    /// The CPU notices that it was asked to look for work.
    Resched(CpuId),
    /// The task has slept enough.
    Sleep(TaskIndex),
}

const PER_CPU: u32 = 4;
const FIRST_CPU: u32 = 3;

/// A heap of four children per node, in which each alarm is found by its number, so that moving one leaves nothing
/// behind. Alarms of one time come in the order in which they were set.
#[derive(Debug)]
pub(crate) struct Alarms {
    heap: Vec<Entry>,
    /// Where in the heap each alarm is, or [`NOWHERE`].
    places: Vec<u32>,
    next_seq: u64,
    nr_cpus: u32,
}

/// Time, place in the order of setting, and number, in one word, so that comparing two takes no branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

const NOWHERE: u32 = u32::MAX;
const CHILDREN: usize = 4;
const NUMBER_BITS: u32 = 24;
const SEQ_BITS: u32 = 40;

impl Entry {
    fn new(at_ns: u64, seq: u64, number: u32) -> Self {
        debug_assert!(seq < 1 << SEQ_BITS && number < 1 << NUMBER_BITS);
        Self(u128::from(at_ns) << (SEQ_BITS + NUMBER_BITS) | u128::from(seq << NUMBER_BITS | u64::from(number)))
    }

    fn at_ns(self) -> u64 {
        (self.0 >> (SEQ_BITS + NUMBER_BITS)) as u64
    }

    fn number(self) -> u32 {
        self.0 as u32 & ((1 << NUMBER_BITS) - 1)
    }
}

impl Alarms {
    pub(crate) fn new(nr_cpus: u32) -> Self {
        let places = vec![NOWHERE; (FIRST_CPU + nr_cpus * PER_CPU) as usize];
        Self { heap: Vec::new(), places, next_seq: 0, nr_cpus }
    }

    /// Sets `alarm`, or moves it.
    ///
    /// # Panics
    ///
    /// When there are more than 16 million tasks at once, or a trillion alarms.
    pub(crate) fn set(&mut self, alarm: Alarm, at_ns: u64) {
        let number = self.number(alarm);
        if number as usize >= self.places.len() {
            assert!(number < 1 << NUMBER_BITS, "more tasks at once than the simulator has names for");
            self.places.resize(number as usize + 1, NOWHERE);
        }
        assert!(self.next_seq < 1 << SEQ_BITS, "more alarms in one simulation than the simulator has names for");
        let entry = Entry::new(at_ns, self.next_seq, number);
        self.next_seq += 1;
        match self.places[number as usize] {
            NOWHERE => {
                self.heap.push(entry);
                self.up(self.heap.len() - 1, entry);
            }
            place => self.replace(place as usize, entry),
        }
    }

    /// Sets `alarm` unless it is set for that time or earlier.
    pub(crate) fn set_if_earlier(&mut self, alarm: Alarm, at_ns: u64) {
        if self.at_ns(alarm).is_none_or(|set_ns| at_ns < set_ns) {
            self.set(alarm, at_ns);
        }
    }

    /// When `alarm` goes off, if it is set.
    pub(crate) fn at_ns(&self, alarm: Alarm) -> Option<u64> {
        match self.places.get(self.number(alarm) as usize) {
            None | Some(&NOWHERE) => None,
            Some(place) => Some(self.heap[*place as usize].at_ns()),
        }
    }

    pub(crate) fn cancel(&mut self, alarm: Alarm) {
        match self.places.get(self.number(alarm) as usize) {
            None | Some(&NOWHERE) => {}
            Some(&place) => self.remove(place as usize),
        }
    }

    /// Takes out the next alarm, with its time.
    pub(crate) fn pop(&mut self) -> Option<(u64, Alarm)> {
        let first = *self.heap.first()?;
        self.remove(0);
        Some((first.at_ns(), self.alarm(first.number())))
    }

    fn remove(&mut self, place: usize) {
        self.places[self.heap[place].number() as usize] = NOWHERE;
        match self.heap.pop() {
            Some(last) if place < self.heap.len() => self.replace(place, last),
            _ => {}
        }
    }

    /// Puts `entry` where another one was, and from there where it belongs.
    fn replace(&mut self, place: usize, entry: Entry) {
        if place > 0 && entry < self.heap[(place - 1) / CHILDREN] {
            self.up(place, entry);
            return;
        }
        // First down to the end, and from there up again: what is put in is nearly always one of the last.
        let mut hole = place;
        while let Some(least) = self.least_child(hole) {
            self.put(hole, self.heap[least]);
            hole = least;
        }
        self.up(hole, entry);
    }

    fn least_child(&self, place: usize) -> Option<usize> {
        let first = place * CHILDREN + 1;
        if let Some(children) = self.heap.get(first..first + CHILDREN) {
            let earlier = |a: usize, b: usize| if children[b] < children[a] { b } else { a };
            return Some(first + earlier(earlier(0, 1), earlier(2, 3)));
        }
        (first..self.heap.len()).min_by_key(|child| self.heap[*child])
    }

    fn up(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent] < entry {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[entry.number() as usize] = place as u32;
    }

    fn number(&self, alarm: Alarm) -> u32 {
        let of_cpu = |cpu, which| FIRST_CPU + cpu * PER_CPU + which;
        match alarm {
            Alarm::Stop => 0,
            Alarm::Inject => 1,
            Alarm::Refill => 2,
            Alarm::Work(cpu) => of_cpu(cpu, 0),
            Alarm::Tick(cpu) => of_cpu(cpu, 1),
            Alarm::Timer(cpu) => of_cpu(cpu, 2),
            Alarm::Resched(cpu) => of_cpu(cpu, 3),
            Alarm::Sleep(task) => of_cpu(self.nr_cpus, task),
        }
    }

    fn alarm(&self, number: u32) -> Alarm {
        match number {
            0 => return Alarm::Stop,
            1 => return Alarm::Inject,
            2 => return Alarm::Refill,
            _ => {}
        }
        let (cpu, which) = ((number - FIRST_CPU) / PER_CPU, (number - FIRST_CPU) % PER_CPU);
        if cpu >= self.nr_cpus {
            return Alarm::Sleep(number - FIRST_CPU - self.nr_cpus * PER_CPU);
        }
        match which {
            0 => Alarm::Work(cpu),
            1 => Alarm::Tick(cpu),
            2 => Alarm::Timer(cpu),
            _ => Alarm::Resched(cpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_alarm_comes_back_as_what_was_set() {
        let mut alarms = Alarms::new(2);
        let all = [
            Alarm::Stop,
            Alarm::Inject,
            Alarm::Refill,
            Alarm::Work(0),
            Alarm::Tick(0),
            Alarm::Timer(1),
            Alarm::Resched(1),
            Alarm::Sleep(0),
            Alarm::Sleep(7),
        ];
        all.iter().for_each(|alarm| alarms.set(*alarm, 5));
        let came: Vec<Alarm> = std::iter::from_fn(|| alarms.pop()).map(|(_, alarm)| alarm).collect();
        assert_eq!(came, all);
    }

    proptest! {
        #[test]
        fn alarms_come_by_time_and_then_in_the_order_they_were_set(
            steps in prop::collection::vec((0..40_u32, 0..20_u64, 0..4_u8), 1..300),
        ) {
            let mut alarms = Alarms::new(1);
            // What is set, in the order in which it was set.
            let mut model: Vec<(u64, Alarm)> = Vec::new();
            for (task, at_ns, what) in steps {
                let alarm = Alarm::Sleep(task);
                match what {
                    0 | 1 => {
                        alarms.set(alarm, at_ns);
                        model.retain(|(_, other)| *other != alarm);
                        model.push((at_ns, alarm));
                    }
                    2 => {
                        alarms.cancel(alarm);
                        model.retain(|(_, other)| *other != alarm);
                    }
                    _ => {
                        let first = model.iter().enumerate().min_by_key(|(order, (at_ns, _))| (*at_ns, *order));
                        let first = first.map(|(order, _)| order);
                        prop_assert_eq!(alarms.pop(), first.map(|order| model.remove(order)));
                    }
                }
                let set_ns = model.iter().find(|(_, other)| *other == alarm).map(|(at_ns, _)| *at_ns);
                prop_assert_eq!(alarms.at_ns(alarm), set_ns);
            }
            model.sort_by_key(|(at_ns, _)| *at_ns);
            prop_assert_eq!(std::iter::from_fn(|| alarms.pop()).collect::<Vec<_>>(), model);
        }
    }
}
