//! Finds tasks that wait for a CPU for longer than any may, whatever their policy has done with them.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ekiden::NICE_0_WEIGHT;
use ekiden_host::Policy;
use ekiden_host::abi::{Event, Outcome};

use crate::engine::{Engine, Handling};
use crate::fault::Fault;

/// How many times as long a light task may wait, at most: sched_ext gives no task more than thirty seconds.
const LIGHTEST: u32 = 3;

/// Where many wait for one CPU, each may have a turn of that long before the last one is due, in milliseconds.
const TURN_MS: u32 = 25;

/// However many they are, sched_ext would end all policies a little later.
const CROWD_MS_MAX: u32 = 25_000;

/// How much longer a task may wait for a CPU that is away, in percent of the usual time: sched_ext's own watchdog is a task, too, which looks
/// every fifteen seconds, and ends all policies if it comes fifteen later.
const AWAY_PERCENT: u32 = 150;

/// A CPU of which less than one event in that time is heard, in milliseconds, is away: a CPU with a task has a tick every ten.
const HEARD_MS: u64 = 25;

/// One look at all tasks. The host takes one every so often, and counts them: while a machine stands still, no task starves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Which one it is, from 1 on.
    pub number: u32,
    /// How many must have seen a task of nice 0 wait for it to have waited too long. One of a smaller weight has up to three times that:
    /// where shares go by weight, it waits that much longer for what it ran.
    pub most: u32,
    /// The time between two, in milliseconds.
    pub apart_ms: u32,
    /// The engine hears of each tick. A CPU that is not idle and of which it hears next to nothing is away then, and lets its tasks wait whatever
    /// their policy does: a hypervisor has taken its processor. Such walks do not count, up to half as long again as the usual wait.
    pub hears_ticks: bool,
}

impl Walk {
    /// How many walks ago a task was first seen waiting with the CPU time that it still has: it has not run since. `watched`
    /// keeps the lower half of that time beside the number of that walk.
    fn waits_for(self, watched: &AtomicU64, runtime_ns: u64, is_waiting: bool) -> u32 {
        let runtime = runtime_ns as u32;
        let seen = watched.load(Relaxed);
        if is_waiting && seen as u32 != 0 && (seen >> 32) as u32 == runtime {
            return self.number.wrapping_sub(seen as u32);
        }
        let seen = if is_waiting { u64::from(runtime) << 32 | u64::from(self.number) } else { 0 };
        watched.store(seen, Relaxed);
        0
    }

    /// How many must have seen a task of this weight wait, where so many wait for its CPU: a user with very many tasks on one
    /// CPU cannot have the policy of all others taken out.
    fn most_of(self, weight: u32, crowd: u32) -> u32 {
        let usual = self.most.saturating_mul((NICE_0_WEIGHT / weight.max(1)).clamp(1, LIGHTEST));
        usual.max(crowd.saturating_mul(TURN_MS).min(CROWD_MS_MAX) / self.apart_ms.max(1))
    }
}

/// In which of the last walks a CPU was away.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    walk: AtomicU32,
    /// What was heard of it up to that walk.
    heard: AtomicU64,
    /// A bit for each walk; the lowest is for that one.
    away: AtomicU32,
}

impl Presence {
    /// Looks at the CPU, once in each walk. Only one walk is under way at a time.
    fn look(&self, walk: Walk, is_idle: bool, heard: impl FnOnce() -> u64) {
        let walks = walk.number.wrapping_sub(self.walk.swap(walk.number, Relaxed));
        if walks == 0 {
            return;
        }
        let heard = heard();
        let more = heard.wrapping_sub(self.heard.swap(heard, Relaxed));
        let is_away = walks == 1 && walk.hears_ticks && !is_idle && more * HEARD_MS < u64::from(walk.apart_ms);
        let away = self.away.load(Relaxed).checked_shl(walks).unwrap_or(0);
        self.away.store(away | u32::from(is_away), Relaxed);
    }

    /// In how many of the last `walks` it was away.
    fn away_in(&self, walks: u32) -> u32 {
        let of_those = 1_u32.checked_shl(walks).map_or(u32::MAX, |bit| bit - 1);
        (self.away.load(Relaxed) & of_those).count_ones()
    }
}

/// How many tasks want a CPU, the one that runs included, as one walk after another counts them: the number of the walk, what it has
/// counted up to now, and what the one before had.
#[derive(Debug, Default)]
pub(crate) struct Crowd([AtomicU32; 3]);

impl Crowd {
    /// Only one walk is under way at a time.
    fn count(&self, walk: u32) {
        let [of_walk, count, last] = &self.0;
        if of_walk.swap(walk, Relaxed) != walk {
            last.store(count.swap(0, Relaxed), Relaxed);
        }
        count.fetch_add(1, Relaxed);
    }

    /// As many as the walk before has counted, or this one up to now if that is more.
    fn last(&self, walk: u32) -> u32 {
        let [of_walk, count, last] = &self.0;
        if of_walk.load(Relaxed) == walk { last.load(Relaxed).max(count.load(Relaxed)) } else { 0 }
    }

    /// The same while that walk may not have come here yet.
    pub(crate) fn about(&self, walk: u32) -> u32 {
        let of_walk = self.0[0].load(Relaxed);
        if walk.wrapping_sub(of_walk) <= 1 { self.last(of_walk) } else { 0 }
    }
}

impl<P: Policy> Engine<P> {
    /// Looks at the tasks in `most` slots from `first` on. A policy of which one has waited for too long is taken out; its tasks
    /// go to others. Returns where the walk goes on, or `None` at its end. `outcome` comes in zeroed; events may come meanwhile.
    ///
    /// Cost: one look for each slot that was ever in use. Nothing where tasks wait and run.
    pub fn find_starved(&self, walk: Walk, first: u32, most: u32, outcome: &mut Outcome) -> Option<u32> {
        let event = Event::default();
        let handling = &mut Handling::<false> { event: &event, outcome };
        let end = first.saturating_add(most);
        self.walk.store(walk.number, Relaxed);
        for view in self.tasks.between(first, end) {
            let is_waiting = view.state.phase().is_waiting();
            let waits = walk.waits_for(self.tasks.watched(view.id), view.runtime_ns, is_waiting);
            let seat = self.seat_of::<false>(view.state);
            let here = self.cpu(view.state.cpu());
            if is_waiting || view.state.phase().is_running() {
                here.crowd.count(walk.number);
            }
            if is_waiting {
                here.presence.look(walk, self.idle.contains(view.state.cpu()), || here.heard());
            }
            let most = walk.most_of(view.weight, here.crowd.last(walk.number));
            if waits >= most
                && (waits - here.presence.away_in(waits) >= most
                    || waits >= walk.most.saturating_mul(AWAY_PERCENT) / 100)
                && self.is_home::<false>(view.state)
                && seat.is_taken()
            {
                let (ms, pid, cpu) = (u64::from(waits) * u64::from(walk.apart_ms), view.pid, view.state.cpu());
                let message = alloc::format!("a task has waited for {ms} ms without running (PID {pid})");
                self.take_out_of(seat, Some(Fault { message, cpu }));
            }
        }
        self.end(handling);
        (end < self.tasks.untouched()).then_some(end)
    }
}
