//! How long a turn is under WFQ, and how much virtual time a task may owe or have ahead.

use ekiden::{NICE_0_WEIGHT, prelude::*, scaled_ns};

/// In so long each of those that wait has a turn, however many they are: 333 have whole slices.
const LONGEST_ROUND_NS: u64 = 1_000_000_000;

/// For so long a task may have to wait for what it has had, or a new one for what it has not had yet, besides what it costs to switch between those
/// that run meanwhile: for the turn of a round that comes to its end a little late. The kernel counts as a task's own what interrupts take while it
/// runs, and where thousands sleep, one wakes up many of them: that may be many times its turn.
const LONGEST_WAIT_NS: u64 = 1_250_000_000;

/// The longest wait of a task with shortened turns: the kernel takes out a scheduler under which one waits for thirty seconds. Only a task that weighs
/// less than a ten-thousandth of the others would have to for its share.
const LONGEST_WAIT_OF_LIGHT_NS: u64 = 6_000_000_000;

/// Where this many wait, every turn is ended by a timer.
const CROWD: u32 = 200;

/// No turn is shorter, however little a task weighs and however many wait.
const SHORTEST_TURN_NS: u64 = 50_000;

/// Where a second has a hundred ticks. A task that has used up its slice runs that much longer.
const LONGEST_TICK_NS: u64 = 10_000_000;

/// So little may be owed, unless the others weigh as much as a crowd.
const SMALL_DEBT_NS: u64 = 1_000_000;
const LARGE_LOAD: u64 = LONGEST_WAIT_NS / SMALL_DEBT_NS * NICE_0_WEIGHT as u64;

/// For so long those that wait may be set back by the head start of all that have slept: in a crowd of sleepers each has the less of one.
const LONGEST_CREDIT_NS: u64 = 100_000_000;

/// Parameters.
#[derive(Layout)]
pub(super) struct Times {
    period_ns: u64,
    pub(super) slice_min_ns: u64,
    sleeper_credit_ns: u64,
    pub(super) wakeup_ns: u64,
}

impl Times {
    pub(super) fn of(env: &Env) -> Self {
        let ns = |name| env.param(name) * 1000;
        Self {
            period_ns: ns("period_us"),
            slice_min_ns: ns("slice_min_us"),
            sleeper_credit_ns: ns("sleeper_credit_us"),
            wakeup_ns: ns("wakeup_us"),
        }
    }

    /// How long a task runs while this many others wait.
    pub(super) fn slice_ns(&self, others: u32) -> u64 {
        (self.period_ns / u64::from(others + 1)).max(self.slice_min_ns)
    }

    /// After how long a timer ends the turn of a task of this weight, while this many `others` of the weight `load` wait: where many wait, a slice that
    /// ends with a tick is owed to each of them.
    pub(super) fn turn_ns(&self, weight: u64, others: u32, load: u64) -> Option<u64> {
        let is_short = is_light(weight, others.into(), load) || others >= CROWD;
        is_short.then(|| {
            let round_ns = LONGEST_ROUND_NS / u64::from(others + 1);
            shortened(self.slice_ns(others).min(round_ns), weight, others.into(), load).max(SHORTEST_TURN_NS)
        })
    }

    /// The virtual time with which a new task begins to owe: a turn, or less in a crowd.
    pub(super) fn newcomers_debt_ns(&self, weight: u32, others: usize, load: u64) -> u64 {
        // A task that runs alone had none to wait for; another one at nice 0 is assumed.
        let (others, load) = if others == 0 { (1, NICE_0_WEIGHT.into()) } else { (others as u64, load) };
        let turn_ns = scaled_ns(shortened(self.slice_min_ns, weight.into(), others, load), weight);
        turn_ns.min(virtual_ns(LONGEST_WAIT_NS, load))
    }

    /// The head start of a task that has slept, where this many others wait.
    pub(super) fn credit_ns(&self, others: usize) -> u64 {
        self.sleeper_credit_ns.min(LONGEST_CREDIT_NS / (others as u64 + 1))
    }

    /// Whether a task may owe so much virtual time that one has to look.
    pub(super) fn owes_much(debt_ns: u64, load: u64) -> bool {
        debt_ns > SMALL_DEBT_NS || load > LARGE_LOAD
    }

    /// How much virtual time a task may owe where this many `others` weigh `load`. No policy can end a long stretch in the kernel that is not preempted:
    /// what it takes beyond two slices, or a tick, is forgiven, as under EEVDF, for each task that comes later would have as much first.
    pub(super) fn bearable_debt_ns(&self, weight: u32, others: usize, load: u64) -> u64 {
        let two_slices_ns = self.period_ns.max(2 * self.slice_min_ns);
        let debt_ns = scaled_ns(two_slices_ns.max(LONGEST_TICK_NS), weight);
        if is_light(weight.into(), others as u64, load) {
            return debt_ns.min(virtual_ns(LONGEST_WAIT_OF_LIGHT_NS, load));
        }
        debt_ns.min(virtual_ns(LONGEST_WAIT_NS, load))
    }
}

/// The virtual time for which a task waits so long while others of the weight `load` have theirs.
fn virtual_ns(wait_ns: u64, load: u64) -> u64 {
    wait_ns * u64::from(NICE_0_WEIGHT) / load.max(1)
}

/// A task of much less weight than the `others` has a turn that is shorter than a slice by as much: in a tick it would have what is due to it
/// in minutes, and would then wait for so long.
fn shortened(slice_ns: u64, weight: u64, others: u64, load: u64) -> u64 {
    if is_light(weight, others, load) { (slice_ns * weight * others / load).max(SHORTEST_TURN_NS) } else { slice_ns }
}

/// Whether a task weighs less than a quarter of what the others do on average.
fn is_light(weight: u64, others: u64, load: u64) -> bool {
    4 * weight * others < load
}
