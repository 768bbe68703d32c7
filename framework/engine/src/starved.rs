//! Finds tasks that wait for a CPU for longer than any may, whatever their policy has done with them.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use ekiden_host::Policy;
use ekiden_host::abi::{Event, Outcome};

use crate::conditions::SEVERAL;
use crate::counters::Cpu;
use crate::engine::{Engine, Handling};
use crate::fault::Fault;
use crate::turns::{ROUND_TICKS, TURN_TICKS};

/// Where several want one CPU, each may have turns of that long, in milliseconds, as many as its weight is times that of the one that waits, and one
/// if it weighs less, before that one is due: not every policy goes by weights.
const TURN_MS: u64 = 25;

/// So soon a task is owed a turn that was made to give way in a read section, in milliseconds: RCU complains after 21 seconds.
const READER_TURN_AFTER_MS: u32 = 1_000;

/// However many they are and whatever they weigh, sched_ext gives no task more than thirty seconds, and would end all policies. A task comes so far
/// only if its CPU owes turns to more tasks than it can give them to.
const LONGEST_MS: u32 = 25_000;

/// How much longer a task may wait for a CPU that is away, in percent of the usual time: sched_ext's own watchdog is a task, too, which looks
/// every fifteen seconds, and ends all policies if it comes fifteen later.
const AWAY_PERCENT: u32 = 150;

/// A CPU of which less than one event in that time is heard, in milliseconds, is away: a CPU with a task has a tick every ten.
const HEARD_MS: u64 = 25;

/// One look at all tasks. The host takes one every so often, and counts them: while a machine stands still, no task starves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Which one it is, from 1 on.
    pub number: u32,
    /// How many must have seen a task wait for it to have waited too long, unless those that want its CPU have so much weight, or are so many, that
    /// its fair share explains more.
    pub most: u32,
    /// The time between two, in milliseconds.
    pub apart_ms: u32,
    /// The engine hears of each tick. A CPU that is not idle and of which it hears next to nothing is away then, and lets its tasks wait whatever
    /// their policy does: a hypervisor has taken its processor. Such scans do not count, up to half as long again as the usual wait.
    pub hears_ticks: bool,
}

impl Scan {
    /// How many scans ago a task was first seen waiting with the CPU time that it still has: it has not run since; and whether its fair share has
    /// explained a long wait in one of them. `watched` keeps the lower half of that time beside that, and the number of that first scan.
    fn waits_for(self, watched: &AtomicU64, runtime_ns: u64, is_explained: bool) -> (u32, bool) {
        const EXPLAINED: u64 = 1 << 31;
        let runtime = u64::from(runtime_ns as u32) << 32;
        let seen = watched.load(Relaxed);
        let number = seen as u32 & !(EXPLAINED as u32);
        let explained = if is_explained { EXPLAINED } else { 0 };
        if number != 0 && seen >> 32 == runtime >> 32 {
            watched.store(seen | explained, Relaxed);
            return (
                self.number_kept().wrapping_sub(number) & !(EXPLAINED as u32),
                (seen | explained) & EXPLAINED != 0,
            );
        }
        watched.store(runtime | explained | u64::from(self.number_kept()), Relaxed);
        (0, is_explained)
    }

    /// Never 0. One scan in 2^31 comes a little late.
    fn number_kept(self) -> u32 {
        (self.number & (u32::MAX >> 1)).max(1)
    }

    /// Whether the fair share of a task of this weight is a longer wait than any task may have without that, where so many `tasks` want its CPU and
    /// weigh `load`, the task included, and its policy has one part in `parts` of that CPU: neither a task of little weight nor a user with very many
    /// tasks on one CPU has the policy of all others taken out.
    fn explains(self, weight: u32, (load, tasks): (u64, u32), parts: u32) -> bool {
        let turns = (load / u64::from(weight.max(1))).max(tasks.into());
        let due_ms = TURN_MS * turns * u64::from(parts);
        due_ms / u64::from(self.apart_ms.max(1)) > u64::from(self.most)
    }

    fn scans_in(self, ms: u32) -> u32 {
        ms / self.apart_ms.max(1)
    }
}

/// What one scan leaves to the next.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    /// The newest, which counts the tasks that wait.
    pub(crate) newest: AtomicU32,
    /// What was heard of all CPUs up to it.
    heard: AtomicU64,
    /// It has found a task that runs.
    found_running: AtomicBool,
    /// How many there were that do not count.
    silent: AtomicU32,
}

/// The last scans in which a CPU was away.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    scan: AtomicU32,
    /// Events that were heard of it up to that scan.
    heard: AtomicU64,
    /// A bit for each scan; the lowest is for that one.
    away: AtomicU32,
}

impl Presence {
    /// Looks at the CPU, once in each scan. Only one scan is under way at a time.
    fn look(&self, scan: Scan, is_idle: bool, heard: impl FnOnce() -> u64) {
        let scans = scan.number.wrapping_sub(self.scan.swap(scan.number, Relaxed));
        if scans == 0 {
            return;
        }
        let heard = heard();
        let more = heard.wrapping_sub(self.heard.swap(heard, Relaxed));
        let is_away = scans == 1 && scan.hears_ticks && !is_idle && more * HEARD_MS < u64::from(scan.apart_ms);
        let away = self.away.load(Relaxed).checked_shl(scans).unwrap_or(0);
        self.away.store(away | u32::from(is_away), Relaxed);
    }

    /// In how many of the last `scans` it was away.
    fn away_in(&self, scans: u32) -> u32 {
        let of_those = 1_u32.checked_shl(scans).map_or(u32::MAX, |bit| bit - 1);
        (self.away.load(Relaxed) & of_those).count_ones()
    }
}

/// How many tasks want a CPU, the one that runs included, and what they weigh together, as one scan after another counts them.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// The number of the scan.
    scan: AtomicU32,
    /// What it has counted up to now.
    tasks: AtomicU32,
    load: AtomicU64,
    /// What the one before has counted, and how many tasks the one before that.
    last_load: AtomicU64,
    last_tasks: [AtomicU32; 2],
}

impl Demand {
    /// Only one scan is under way at a time.
    fn count(&self, scan: u32, weight: u32) {
        let last = self.last_three(scan);
        if self.scan.swap(scan, Relaxed) != scan {
            self.last_tasks.iter().zip(&last[1..]).for_each(|(place, tasks)| place.store(*tasks, Relaxed));
            self.tasks.store(0, Relaxed);
            self.last_load.store(self.load.swap(0, Relaxed), Relaxed);
        }
        self.tasks.fetch_add(1, Relaxed);
        self.load.fetch_add(weight.into(), Relaxed);
    }

    /// The load that the scan before has counted, or this one up to now if that is more; and how many tasks.
    fn most(&self, scan: u32) -> (u64, u32) {
        if self.scan.load(Relaxed) != scan {
            return (0, 0);
        }
        let load = self.last_load.load(Relaxed).max(self.load.load(Relaxed));
        (load, self.last_tasks[0].load(Relaxed).max(self.tasks.load(Relaxed)))
    }

    /// What this scan has counted, and the two before it.
    fn last_three(&self, scan: u32) -> [u32; 3] {
        let tasks = self.tasks.load(Relaxed);
        let [last, before] = [0, 1].map(|at: usize| self.last_tasks[at].load(Relaxed));
        // Scans after the last one that counted something found no task here.
        match scan.wrapping_sub(self.scan.load(Relaxed)) {
            0 => [tasks, last, before],
            1 => [0, tasks, last],
            2 => [0, 0, tasks],
            _ => [0; 3],
        }
    }

    /// How many tasks there are: the middle one of what the last three scans have counted. A scan meets a CPU at one moment, in which hundreds may
    /// have been made that sleep for good a moment later.
    pub(crate) fn about(&self, scan: u32) -> u32 {
        let [one, two, three] = self.last_three(scan);
        one.min(two).max(one.max(two).min(three))
    }
}

impl<P: Policy> Engine<P> {
    /// Looks at the tasks in `most` entries from `first` on. A policy of which one has waited for too long is taken out; its tasks
    /// go to others. Returns where the scan continues, or `None` at its end. `outcome` comes in zeroed; events may come meanwhile.
    ///
    /// Cost: one look for each entry that was ever in use. Nothing where tasks wait and run.
    pub fn find_starved(&self, scan: Scan, first: u32, most: u32, outcome: &mut Outcome) -> Option<u32> {
        let event = Event::default();
        let handling = &mut Handling::<SEVERAL> { event: &event, outcome };
        if first == 0 && self.is_silent(scan) {
            self.scans.silent.fetch_add(1, Relaxed);
            return None;
        }
        let scan = Scan { number: scan.number.wrapping_sub(self.scans.silent.load(Relaxed)), ..scan };
        let end = first.saturating_add(most);
        self.scans.newest.store(scan.number, Relaxed);
        // A policy that is asked later than others has that much at least.
        let parts = if self.is_single() { 1 } else { ROUND_TICKS / TURN_TICKS };
        for view in self.tasks.between(first, end) {
            let is_waiting = view.state.phase().is_waiting();
            let policy_slot = self.policy_slot_of::<SEVERAL>(view.state);
            let here = self.cpu(view.state.cpu());
            if is_waiting || view.state.phase().is_running() {
                here.demand.count(scan.number, view.weight);
            }
            if view.state.phase().is_running() {
                self.scans.found_running.store(true, Relaxed);
            }
            let watched = self.tasks.watched(view.id);
            if !is_waiting {
                watched.store(0, Relaxed);
                continue;
            }
            here.presence.look(scan, self.idle.contains(view.state.cpu()), || here.heard());
            let is_explained = scan.explains(view.weight, here.demand.most(scan.number), parts);
            let (waits, is_explained) = scan.waits_for(watched, view.runtime_ns, is_explained);
            let is_due = is_explained && waits >= scan.most
                || waits >= scan.scans_in(READER_TURN_AFTER_MS).max(1) && self.host.is_in_read_section(view.id);
            if is_due {
                self.owe_turn(handling, view.id, view.state.cpu());
            }
            let most = if is_explained { scan.most.max(scan.scans_in(LONGEST_MS)) } else { scan.most };
            if waits >= most
                && (waits - here.presence.away_in(waits) >= most
                    || waits >= scan.most.saturating_mul(AWAY_PERCENT) / 100)
                && self.is_attached::<SEVERAL>(view.state)
                && policy_slot.is_taken()
            {
                let (ms, pid, cpu) = (u64::from(waits) * u64::from(scan.apart_ms), view.pid, view.state.cpu());
                let message = alloc::format!("a task has waited for {ms} ms without running (PID {pid})");
                self.take_out_of(policy_slot, Some(Fault { message, cpu }));
            }
        }
        self.end(handling);
        (end < self.tasks.untouched()).then_some(end)
    }

    /// Whether nothing was heard of any CPU since the last scan, though tasks run: the kernel asks no policy, as while sched_ext ends, and what waits
    /// waits for the kernel. Such a scan does not count.
    fn is_silent(&self, scan: Scan) -> bool {
        let heard = self.cpus.iter().map(Cpu::heard).fold(0, u64::wrapping_add);
        let is_same = self.scans.heard.swap(heard, Relaxed) == heard;
        if scan.hears_ticks && is_same && self.scans.found_running.load(Relaxed) {
            return true;
        }
        self.scans.found_running.store(false, Relaxed);
        false
    }
}
