//! Events that are going to happen, in order of time.

use ekiden::CpuId;

use crate::model::MAX_INTERRUPTS;
use crate::task::TaskIndex;

/// Something that will happen at a time. There is at most one of each. All but a task's can be moved and cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// The load is stopped.
    Stop,
    /// The next injection is due.
    Inject,
    /// A group of tasks gets new CPU time.
    Refill,
    /// The engine has kept something for later.
    Late,
    /// A policy takes over from the one that runs.
    Upgrade,
    /// Hints are due, or notices are there.
    Queues,
    /// A device interrupts.
    Interrupt(u32),
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
const FIRST_INTERRUPT: u32 = 6;
const FIRST_CPU: u32 = FIRST_INTERRUPT + MAX_INTERRUPTS as u32;

/// A digit of a time: six bits, because a word has 64.
const DIGIT_BITS: u32 = 6;
const DIGITS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = u64::BITS.div_ceil(DIGIT_BITS) as usize;

/// Alarms by the highest digit in which their time differs from the present, and by that digit: a radix heap. Time only
/// goes forward, so that each alarm comes to a lower level now and then, and nothing is ever searched for. One that is
/// set again or cancelled leaves an entry behind, which is passed over when its time comes.
///
/// Alarms of one time come in the order in which each was first set for it: entries are only added at the end of a list.
#[derive(Debug)]
pub(crate) struct Alarms {
    /// When each that can be moved goes off, by number, or [`NEVER`].
    set: Vec<u64>,
    lists: Vec<Vec<Entry>>,
    /// The digits of each level whose list is not empty.
    digits: [u64; LEVELS],
    /// The levels that have any.
    levels: u32,
    /// Entries of the present, and how many of these are done with.
    due: Vec<Entry>,
    done: usize,
    now_ns: u64,
    /// The time of the last alarm that went off: the present may be ahead of it by entries that were cancelled or set anew.
    popped_ns: u64,
    nr_cpus: u32,
}

/// An alarm that was set.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: u64,
    number: u32,
}

/// Later than anything that is waited for.
const NEVER: u64 = u64::MAX;

impl Alarms {
    pub(crate) fn new(nr_cpus: u32) -> Self {
        Self {
            set: vec![NEVER; (FIRST_CPU + nr_cpus * PER_CPU) as usize],
            lists: vec![Vec::new(); LEVELS * DIGITS],
            digits: [0; LEVELS],
            levels: 0,
            due: Vec::new(),
            done: 0,
            now_ns: 0,
            popped_ns: 0,
            nr_cpus,
        }
    }

    /// Sets `alarm`, or moves it. A time that has passed counts as the present.
    #[inline]
    pub(crate) fn set(&mut self, alarm: Alarm, at_ns: u64) {
        let number = self.number(alarm);
        let at_ns = at_ns.clamp(self.now_ns, NEVER - 1);
        if let Some(set_ns) = self.set.get_mut(number as usize) {
            if std::mem::replace(set_ns, at_ns) == at_ns {
                return;
            }
        }
        self.put(Entry { at_ns, number });
    }

    /// Sets `alarm` unless it is set for that time or earlier.
    #[inline]
    pub(crate) fn set_if_earlier(&mut self, alarm: Alarm, at_ns: u64) {
        if self.at_ns(alarm).is_none_or(|set_ns| at_ns < set_ns) {
            self.set(alarm, at_ns);
        }
    }

    /// When `alarm` goes off, if it is set. Not for that of a task.
    #[inline]
    pub(crate) fn at_ns(&self, alarm: Alarm) -> Option<u64> {
        self.set.get(self.number(alarm) as usize).copied().filter(|at_ns| *at_ns != NEVER)
    }

    #[inline]
    pub(crate) fn cancel(&mut self, alarm: Alarm) {
        let number = self.number(alarm);
        if let Some(at_ns) = self.set.get_mut(number as usize) {
            *at_ns = NEVER;
        }
    }

    /// Takes out the next alarm, with its time.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u64, Alarm)> {
        loop {
            while let Some(entry) = self.due.get(self.done) {
                let Entry { at_ns, number } = *entry;
                self.done += 1;
                match self.set.get_mut(number as usize) {
                    Some(set_ns) if *set_ns != at_ns => continue,
                    Some(set_ns) => *set_ns = NEVER,
                    None => {}
                }
                self.popped_ns = at_ns;
                return Some((at_ns, self.alarm(number)));
            }
            if !self.advance() {
                self.now_ns = self.popped_ns;
                return None;
            }
        }
    }

    /// Goes to the time of the next entry, if there is one.
    fn advance(&mut self) -> bool {
        self.due.clear();
        self.done = 0;
        if self.levels == 0 {
            return false;
        }
        // What differs least from the present comes first, and of these what has the lowest digit.
        let level = self.levels.trailing_zeros() as usize;
        let digit = self.digits[level].trailing_zeros() as usize;
        self.digits[level] &= !(1 << digit);
        if self.digits[level] == 0 {
            self.levels &= !(1 << level);
        }
        let list = level * DIGITS + digit;
        if level == 0 || self.lists[list].len() == 1 {
            std::mem::swap(&mut self.due, &mut self.lists[list]);
            self.now_ns = self.due[0].at_ns;
            return true;
        }
        let mut entries = std::mem::take(&mut self.lists[list]);
        self.now_ns = entries.iter().map(|entry| entry.at_ns).min().unwrap_or(self.now_ns);
        // The present now has more in common with all of them.
        entries.drain(..).for_each(|entry| self.put(entry));
        self.lists[list] = entries;
        true
    }

    #[inline]
    fn put(&mut self, entry: Entry) {
        let differs = entry.at_ns ^ self.now_ns;
        if differs == 0 {
            return self.due.push(entry);
        }
        let level = differs.ilog2() / DIGIT_BITS;
        let digit = (entry.at_ns >> (level * DIGIT_BITS)) as usize % DIGITS;
        self.levels |= 1 << level;
        self.digits[level as usize] |= 1 << digit;
        self.lists[level as usize * DIGITS + digit].push(entry);
    }

    fn number(&self, alarm: Alarm) -> u32 {
        let of_cpu = |cpu, which| FIRST_CPU + cpu * PER_CPU + which;
        match alarm {
            Alarm::Stop => 0,
            Alarm::Inject => 1,
            Alarm::Refill => 2,
            Alarm::Upgrade => 3,
            Alarm::Late => 4,
            Alarm::Queues => 5,
            Alarm::Interrupt(source) => FIRST_INTERRUPT + source,
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
            3 => return Alarm::Upgrade,
            4 => return Alarm::Late,
            5 => return Alarm::Queues,
            FIRST_INTERRUPT..FIRST_CPU => return Alarm::Interrupt(number - FIRST_INTERRUPT),
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
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_alarm_comes_back_as_what_was_set() {
        let mut alarms = Alarms::new(2);
        let all = [
            Alarm::Stop,
            Alarm::Inject,
            Alarm::Refill,
            Alarm::Upgrade,
            Alarm::Late,
            Alarm::Queues,
            Alarm::Interrupt(0),
            Alarm::Interrupt(MAX_INTERRUPTS as u32 - 1),
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
            steps in prop::collection::vec((0..40_u32, prop_oneof![0..20_u64, 0..10_000_u64, 0..1_u64 << 40], 0..4_u8), 1..300),
        ) {
            let mut alarms = Alarms::new(40);
            // Alarms in the order in which they were set, whether they are waited for or not.
            let mut entries: Vec<(u64, Alarm)> = Vec::new();
            let mut set = HashMap::new();
            let mut now_ns = 0;
            for (cpu, in_ns, what) in steps {
                let (alarm, at_ns) = (Alarm::Timer(cpu), now_ns + in_ns);
                match what {
                    0 | 1 => {
                        alarms.set(alarm, at_ns);
                        entries.push((at_ns, alarm));
                        set.insert(cpu, at_ns);
                    }
                    2 => {
                        alarms.cancel(alarm);
                        set.remove(&cpu);
                    }
                    _ => {
                        let first = pop(&mut entries, &mut set);
                        prop_assert_eq!(alarms.pop(), first);
                        now_ns = first.map_or(now_ns, |(at_ns, _)| at_ns);
                    }
                }
                prop_assert_eq!(alarms.at_ns(alarm), set.get(&cpu).copied());
            }
            while let Some(alarm) = pop(&mut entries, &mut set) {
                prop_assert_eq!(alarms.pop(), Some(alarm));
            }
            prop_assert_eq!(alarms.pop(), None);
        }
    }

    /// The first of the earliest entries that are waited for. What comes before it has had its time.
    fn pop(entries: &mut Vec<(u64, Alarm)>, set: &mut HashMap<u32, u64>) -> Option<(u64, Alarm)> {
        entries.sort_by_key(|(at_ns, _)| *at_ns);
        let is_set = |(at_ns, alarm): &(u64, Alarm)| matches!(alarm, Alarm::Timer(cpu) if set.get(cpu) == Some(at_ns));
        let place = entries.iter().position(is_set)?;
        let first = entries.drain(..=place).next_back()?;
        set.retain(|cpu, _| Alarm::Timer(*cpu) != first.1);
        Some(first)
    }
}
