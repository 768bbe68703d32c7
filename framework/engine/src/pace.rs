//! How much a policy may ask for in a time: kicks, timers, and searches for work that come to nothing.
//!
//! A kick costs its CPU a search for work, some microseconds. What tasks, ticks and timers give rise to is bounded by them: a call about
//! such an event may kick one CPU for nothing, as often as it comes, which is what preemption at wake-ups and at timers of 10 µs takes.
//! Kicks of more CPUs at once are paid for, and so is every kick in a search for work, as that is what a kick leads to: it would
//! never end. A policy that looks around for idle CPUs there needs a few of those in a tick. Where a search takes as long as what it may
//! cost, or a CPU loses its processor, too few fit into a window to show that: a CPU that looks for work, finds none and kicks itself for
//! half a second has found the same.
//!
//! A policy has so much for each CPU and window of a millisecond. What it asks for beyond that is put together and carried out when the
//! window ends, so no task is lost by it. That slows it down, and leaves most of the CPU to tasks. One that does it window
//! after window is taken out.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ekiden::{Call, CpuId};
use ekiden_host::Policy;
use ekiden_host::abi::{EventKind, Kicks, RawToken, Reply};

use crate::counters::Counters;
use crate::engine::{Engine, Handling};
use crate::fault::Fault;
use crate::late::WINDOW_NS;
use crate::order::Order;
use crate::pick::PICK_ATTEMPTS;
use crate::policy_slots::{POLICY_SLOTS, PolicySlot};

/// The shortest time until a timer, in nanoseconds: preemption at 10 µs is worth its cost for some (Shinjuku, NSDI 2019), and nothing is
/// worth it more often.
pub const TIMER_NS_MIN: u64 = 10_000;

/// The longest time until a timer, in nanoseconds: a century. The kernel's own times have a sign.
const TIMER_NS_MAX: u64 = 100 * 365 * 86_400 * 1_000_000_000;

/// What a policy has for a CPU and window: a unit for each CPU that is kicked beside the first.
const UNITS: u32 = 100;

/// What a kick in a search for work costs of it: 20 in a window are a fifth of the CPU, or less.
const UNITS_IN_PICK: u32 = 5;

/// Consecutive windows in which a policy may want more than it has before it is taken out.
pub const WINDOWS_OVER_MOST: u32 = 200;

/// Quiet windows that make up for one of those. A CPU that loses its processor now and then has quiet ones, too.
const QUIET_FOR_ONE: u64 = 4;

/// For so long a policy may search in vain on a CPU, that is without a task that is picked there, and for up to twice as long as often as that:
/// searches in which all tokens are refused, and kicks of that CPU by itself in searches. Tokens of tasks that are gone come to an end sooner:
/// each is refused once. A CPU that is idle for long and looks in vain now and then has fewer in any second.
const VAIN_NS: u64 = 500_000_000;
const VAIN_REFUSALS: u32 = 256;
const VAIN_KICKS: u32 = 512;

/// How often in a row a CPU may be given one token that is no good any more. Beside another policy that keeps the CPU
/// busy, too few searches are in vain to show that.
const SAME_MOST: u32 = 512;

/// What a policy has spent for one CPU. Several CPUs may write it, if events are about that one: then it is a little off.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    window: Window,
    refused: Vain,
    kicked: Vain,
    same: Same,
}

#[derive(Debug, Default)]
struct Window {
    spent: AtomicU32,
    began_ns: AtomicU64,
    /// Whether more was wanted in this one.
    is_over: AtomicU32,
    /// In how many windows more was wanted, less those made up for since.
    over: AtomicU32,
}

/// Counts of vain answers and kicks since the last task was picked.
#[derive(Debug, Default)]
struct Vain {
    times: AtomicU32,
    began_ns: AtomicU64,
    picks: AtomicU64,
}

/// The last token that was refused because it will never be good again.
#[derive(Debug, Default)]
struct Same {
    task: AtomicU64,
    serial: AtomicU32,
    times: AtomicU32,
}

/// The answer to a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Granted,
    /// The window has no more to spend: it is refused until the next one.
    Late,
    /// It is one too many.
    Ends,
}

impl Pace {
    /// Nothing has been spent yet. What belongs to it is a number of times, or of windows, without which it says nothing.
    fn begin(&self) {
        let Self { window, refused, kicked, same } = self;
        let Window { spent, began_ns, is_over, over } = window;
        began_ns.store(0, Relaxed);
        let counts = [spent, is_over, over, &refused.times, &kicked.times, &same.times];
        counts.into_iter().for_each(|count| count.store(0, Relaxed));
    }
}

impl Window {
    /// A policy that has something left may spend more than that, so that each window has room for one wish of any size. The clock is read by
    /// those that have nothing left.
    fn spend(&self, units: u32, now_ns: impl FnOnce() -> u64) -> Verdict {
        let spent = self.spent.load(Relaxed);
        if spent < UNITS {
            self.spent.store(spent.saturating_add(units), Relaxed);
            return Verdict::Granted;
        }
        let now_ns = now_ns();
        let windows = now_ns.saturating_sub(self.began_ns.load(Relaxed)) / WINDOW_NS;
        if windows > 0 {
            let quiet = windows - u64::from(self.is_over.swap(0, Relaxed).min(1));
            let made_up = (quiet / QUIET_FOR_ONE).min(u64::from(u32::MAX)) as u32;
            self.over.store(self.over.load(Relaxed).saturating_sub(made_up), Relaxed);
            self.began_ns.store(now_ns, Relaxed);
            self.spent.store(units, Relaxed);
            return Verdict::Granted;
        }
        let is_first = self.is_over.swap(1, Relaxed) == 0;
        let over = self.over.load(Relaxed) + u32::from(is_first);
        self.over.store(over, Relaxed);
        if over > WINDOWS_OVER_MOST { Verdict::Ends } else { Verdict::Late }
    }
}

impl Vain {
    /// Once more; `picks` tasks were picked until then. How often it was if that is too often.
    fn add(&self, picks: u64, now_ns: u64, most: u32) -> Option<u32> {
        let times = self.times.load(Relaxed);
        let lasts_ns = now_ns.saturating_sub(self.began_ns.load(Relaxed));
        if times == 0 || lasts_ns > 2 * VAIN_NS || self.picks.load(Relaxed) != picks {
            self.picks.store(picks, Relaxed);
            self.began_ns.store(now_ns, Relaxed);
            self.times.store(1, Relaxed);
            return None;
        }
        self.times.store(times.saturating_add(1), Relaxed);
        (times >= most && lasts_ns >= VAIN_NS).then_some(times)
    }
}

impl Same {
    /// It is refused once more. Whether that is too often.
    fn add(&self, token: RawToken) -> bool {
        let (task, serial) = (token.task.to_bits(), token.serial);
        let is_same = self.task.load(Relaxed) == task && self.serial.load(Relaxed) == serial;
        let times = if is_same { self.times.load(Relaxed).saturating_add(1) } else { 1 };
        self.task.store(task, Relaxed);
        self.serial.store(serial, Relaxed);
        self.times.store(times, Relaxed);
        times >= SAME_MOST
    }
}

/// What kicks of this many CPUs cost in an event of this kind.
fn cost_of(kicked: u32, kind: u32) -> u32 {
    if kind == EventKind::Pick as u32 || kind == EventKind::PickRefused as u32 {
        kicked.saturating_mul(UNITS_IN_PICK)
    } else {
        kicked.saturating_sub(1)
    }
}

impl<P: Policy> Engine<P> {
    /// The timer of a CPU went off. The host has one for each CPU; several policies share it.
    pub(crate) fn timer(&self, handling: &mut Handling<'_>) {
        let cpu = handling.event.cpu;
        if self.is_single() {
            if self.policy_slots[0].calls().has(Call::Timer) {
                self.tell_cpu(handling, &self.policy_slots[0], Call::Timer, cpu);
            }
            return;
        }
        let now_ns = self.host.now_ns();
        let due = &self.cpu(cpu).due_ns;
        // A policy that was alone until now has armed it without a note here.
        let is_only = self.order.get() == Order::FIRST;
        for policy_slot in self.in_order() {
            let due_ns = due[policy_slot.index].load(Relaxed);
            if is_only || (due_ns != 0 && due_ns <= now_ns) {
                due[policy_slot.index].store(0, Relaxed);
                if policy_slot.calls().has(Call::Timer) && policy_slot.is_taken() {
                    self.tell_cpu(handling, policy_slot, Call::Timer, cpu);
                }
            }
        }
        self.arm_timer(handling, now_ns);
    }

    /// The host's timer is set for the policy whose timer is next.
    pub(crate) fn arm_timer(&self, handling: &mut Handling<'_>, now_ns: u64) {
        let due_ns = &self.cpu(handling.event.cpu).due_ns;
        // What one that has left is due would stay in the list.
        let due = self.in_order().map(|policy_slot| due_ns[policy_slot.index % POLICY_SLOTS].load(Relaxed));
        if let Some(first) = due.filter(|due_ns| *due_ns != 0).min() {
            handling.outcome.timer_ns = first.saturating_sub(now_ns).max(1);
        }
    }

    /// A policy wants CPUs to look for work. They exist.
    pub(crate) fn wants_kicks(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        call: Call,
        kicks: Kicks,
    ) {
        let kicked = if kicks.is_all() { self.nr_cpus() } else { kicks.iter().count() as u32 };
        let (cpu, units) = (handling.event.cpu, cost_of(kicked, handling.event.kind));
        if handling.event.kind == EventKind::Pick as u32 && kicks.contains(cpu) {
            self.looks_again(policy_slot, cpu);
        }
        let window = &self.cpu(cpu).pace[policy_slot.index % POLICY_SLOTS].window;
        let verdict = if units == 0 { Verdict::Granted } else { window.spend(units, || self.host.now_ns()) };
        if verdict == Verdict::Granted {
            return handling.outcome.kicks.add_all(kicks);
        }
        Counters::count(&self.counters(cpu, policy_slot).slowed);
        // A CPU for which a task waits has to look, whatever happens to the policy.
        self.late.add(kicks);
        self.host.refill_at(self.host.now_ns().saturating_add(WINDOW_NS));
        if verdict == Verdict::Ends {
            let (call, ms) = (call.name(), u64::from(WINDOWS_OVER_MOST) * WINDOW_NS / 1_000_000);
            let message = alloc::format!("too many kicks: {call} has asked for more than it may for {ms} ms");
            self.take_out_of(policy_slot, Some(Fault { message, cpu }));
        }
    }

    /// A window is over.
    pub(crate) fn carry_out_late(&self, handling: &mut Handling<'_>, now_ns: u64) {
        if !self.late.any() {
            return;
        }
        match self.late.take(now_ns) {
            Ok(kicks) => handling.outcome.kicks.add_all(kicks),
            Err(at_ns) => self.host.refill_at(at_ns),
        }
    }

    /// A policy wants a timer. When it goes off, in nanoseconds from now.
    pub(crate) fn wants_timer(&self, handling: &Handling<'_>, policy_slot: &PolicySlot<P>, reply: &Reply) -> u64 {
        if reply.timer_ns < TIMER_NS_MIN {
            Counters::count(&self.counters(handling.event.cpu, policy_slot).slowed);
        }
        reply.timer_ns.clamp(TIMER_NS_MIN, TIMER_NS_MAX)
    }

    /// A policy was asked for a task as often as may be, and each of its tokens was refused.
    #[cold]
    pub(crate) fn searched_in_vain(&self, policy_slot: &PolicySlot<P>, cpu: CpuId) {
        Counters::count(&self.counters(cpu, policy_slot).slowed);
        let refused = &self.cpu(cpu).pace[policy_slot.index % POLICY_SLOTS].refused;
        if let Some(searches) = refused.add(self.picks(policy_slot, cpu), self.host.now_ns(), VAIN_REFUSALS) {
            let tokens = u64::from(searches) * u64::from(PICK_ATTEMPTS);
            let message =
                alloc::format!("too many refusals: pick_next_task has given {tokens} tokens, and none was good");
            self.take_out_of(policy_slot, Some(Fault { message, cpu }));
        }
    }

    /// A token was refused that will never be good again.
    #[cold]
    pub(crate) fn refused_for_good(&self, policy_slot: &PolicySlot<P>, cpu: CpuId, token: RawToken) {
        if self.cpu(cpu).pace[policy_slot.index % POLICY_SLOTS].same.add(token) {
            let message = alloc::format!(
                "too many refusals: pick_next_task has given the same token {SAME_MOST} times, and it will never be good again"
            );
            self.take_out_of(policy_slot, Some(Fault { message, cpu }));
        }
    }

    /// A policy has a CPU that looks for work look again.
    fn looks_again(&self, policy_slot: &PolicySlot<P>, cpu: CpuId) {
        let kicked = &self.cpu(cpu).pace[policy_slot.index % POLICY_SLOTS].kicked;
        if let Some(times) = kicked.add(self.picks(policy_slot, cpu), self.host.now_ns(), VAIN_KICKS) {
            let message = alloc::format!(
                "too many kicks: a CPU has kicked itself {times} times in searches for work, and has found none"
            );
            self.take_out_of(policy_slot, Some(Fault { message, cpu }));
        }
    }

    fn picks(&self, policy_slot: &PolicySlot<P>, cpu: CpuId) -> u64 {
        self.counters(cpu, policy_slot).picks.load(Relaxed)
    }

    /// The policy in a policy slot is another one.
    pub(crate) fn begins_pace(&self, policy_slot: usize) {
        self.cpus.iter().for_each(|cpu| cpu.pace[policy_slot % POLICY_SLOTS].begin());
    }
}

#[cfg(test)]
mod tests {
    use alloc::{collections::BTreeMap, vec::Vec};

    use proptest::prelude::*;

    use super::*;
    use crate::late::Late;

    const PICK: u32 = EventKind::Pick as u32;
    const MS: u64 = 1_000_000;

    /// How many windows pass until a policy that spends `units` every `every_ns` is taken out, and what it was granted until then.
    fn until_it_ends(units: u32, every_ns: u64, windows_most: u64) -> (Option<u64>, u64) {
        let (window, mut granted) = (Window::default(), 0);
        for time in 0..windows_most * WINDOW_NS / every_ns {
            let now_ns = time * every_ns;
            match window.spend(units, || now_ns) {
                Verdict::Granted => granted += u64::from(units),
                Verdict::Late => {}
                Verdict::Ends => return (Some(now_ns / WINDOW_NS), granted),
            }
        }
        (None, granted)
    }

    #[test]
    fn one_kick_for_each_wakeup_tick_or_timer_is_free() {
        for kind in [EventKind::Enqueue, EventKind::Tick, EventKind::Timer, EventKind::SelectCpu] {
            assert_eq!(cost_of(1, kind as u32), 0);
            assert_eq!(cost_of(4, kind as u32), 3);
        }
        assert_eq!(cost_of(1, PICK), UNITS_IN_PICK);
    }

    #[test]
    fn a_kick_in_every_search_for_work_ends_within_a_second() {
        // A search takes 2 µs on a fast machine, and 30 in an emulator.
        for every_ns in [2_000, 10_000, 30_000] {
            let (ends, granted) = until_it_ends(cost_of(1, PICK), every_ns, 2_000);
            let ends = ends.expect("it does not end");
            assert!((100..1_000).contains(&ends), "{ends} windows");
            assert!(granted <= (ends + 1) * u64::from(UNITS), "it is hardly slowed down: {granted}");
        }
    }

    #[test]
    fn a_few_kicks_in_searches_at_each_tick_never_end() {
        // A thousand ticks in a second, and four kicks with each.
        assert_eq!(until_it_ends(4 * cost_of(1, PICK), MS, 10_000).0, None);
    }

    #[test]
    fn all_cpus_may_be_kicked_in_each_window_whatever_their_number() {
        assert_eq!(until_it_ends(8_191, MS, 1_000), (None, 1_000 * 8_191));
    }

    #[test]
    fn a_burst_now_and_then_never_ends() {
        let window = Window::default();
        for second in 0..1_000 {
            // Twenty windows in which all kick all, and eighty in which nothing happens.
            for time in 0..2_000_u64 {
                let now_ns = (second * 100 + time / 100) * WINDOW_NS + time % 100;
                assert_ne!(window.spend(63, || now_ns), Verdict::Ends, "after {second} bursts");
            }
        }
    }

    #[test]
    fn a_cpu_that_loses_its_processor_now_and_then_ends_all_the_same() {
        let window = Window::default();
        // 4 ms here and 4 ms away, as under a hypervisor.
        let ends = (0..1_000_000_u64).map(|time| 10_000 * time).filter(|now_ns| now_ns / (4 * MS) % 2 == 0);
        let mut ends = ends.skip_while(|now_ns| window.spend(UNITS_IN_PICK, || *now_ns) != Verdict::Ends);
        assert!(ends.next().is_some_and(|now_ns| now_ns < 1_000 * MS));
    }

    #[test]
    fn refusals_end_if_none_of_many_is_good_for_half_a_second() {
        let refused = |vain: &Vain, picks, now_ns| vain.add(picks, now_ns, VAIN_REFUSALS).is_some();
        let vain = Vain::default();
        // The searches that a table of a million tasks can need, each task refused once, in 300 ms.
        assert!((0..16_384).all(|search| !refused(&vain, 7, search * 18_000)));
        // One was good.
        assert!((0..100_000).all(|search| !refused(&vain, search, search * 100_000)));
        let vain = Vain::default();
        let ends = (0..100_000).map(|search| search * 100_000).find(|now_ns| refused(&vain, 7, *now_ns));
        assert_eq!(ends, Some(VAIN_NS));
    }

    #[test]
    fn what_is_in_vain_now_and_then_never_ends_a_policy() {
        // On a CPU that has nothing to do for hours: at each tick; and a burst of just too few once in a while.
        for (often, every_ns, most) in
            [(1, 4 * MS, VAIN_REFUSALS), (1, 2 * MS, VAIN_KICKS), (500, 20_000 * MS, VAIN_KICKS)]
        {
            let vain = Vain::default();
            let times = (0..10_000_u64).flat_map(|time| (0..often).map(move |_| time * every_ns));
            assert_eq!(
                times.filter_map(|now_ns| vain.add(7, now_ns, most)).next(),
                None,
                "{often} every {every_ns} ns"
            );
        }
    }

    proptest! {
        /// Whatever is asked for and when: what comes late is not lost, and what is granted in a window is bounded.
        #[test]
        fn kicks_are_put_together_and_never_lost(wishes in prop::collection::vec((0_u32..8, 1_u32..64, 0_u64..300_000), 1..400)) {
            let (window, late) = (Window::default(), Late::default());
            let (mut now_ns, mut owed) = (0, Vec::new());
            let mut granted = BTreeMap::<u64, u32>::new();
            for (cpu, units, later_ns) in wishes {
                now_ns += later_ns;
                let mut kicks = Kicks::NONE;
                kicks.add(cpu);
                match window.spend(units, || now_ns) {
                    Verdict::Granted => *granted.entry(window.began_ns.load(Relaxed)).or_default() += units,
                    _ => {
                        late.add(kicks);
                        owed.push(cpu);
                    }
                }
                prop_assert_eq!(late.any(), !owed.is_empty());
                if let Ok(taken) = late.take(now_ns) {
                    prop_assert!(owed.iter().all(|cpu| taken.contains(*cpu)), "{:?} of {:?}", taken, owed);
                    owed.clear();
                }
            }
            prop_assert!(granted.values().all(|units| *units < UNITS + 64), "{:?}", granted);
        }
    }
}
