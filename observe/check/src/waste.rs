//! How many CPUs are wasted at a moment, and how much CPU time in a window: one count for simulations, traces and a running
//! kernel.

use ekiden::CpuMask;
use serde::Serialize;

/// How many of the CPUs in `idle` could each have a task of its own, if `anywhere` tasks wait that may run on every one of
/// them, and for each of `choosy` one that may run on these: the size of a largest matching. Takes idle CPUs × choosy tasks
/// × the CPUs of each in the worst case.
pub fn wasted_cpus(idle: &CpuMask, anywhere: usize, choosy: &[CpuMask]) -> u32 {
    let idle_cpus = idle.count();
    // Tasks that may run anywhere take what the others leave.
    let mut taken: Vec<Option<usize>> = vec![None; idle.iter().last().map_or(0, |cpu| cpu as usize + 1)];
    let mut matched = 0;
    for task in 0..choosy.len() {
        if matched == idle_cpus {
            break;
        }
        matched += u32::from(place(task, idle, choosy, &mut taken, &mut CpuMask::new()));
    }
    matched.saturating_add(u32::try_from(anywhere).unwrap_or(u32::MAX)).min(idle_cpus)
}

/// Finds an idle CPU for the task, if others that have one have to move for it: an augmenting path.
fn place(task: usize, idle: &CpuMask, choosy: &[CpuMask], taken: &mut [Option<usize>], seen: &mut CpuMask) -> bool {
    for cpu in choosy[task].both(idle) {
        if seen.contains(cpu) {
            continue;
        }
        seen.set(cpu);
        let is_free = match taken[cpu as usize] {
            None => true,
            Some(other) => place(other, idle, choosy, taken, seen),
        };
        if is_free {
            taken[cpu as usize] = Some(task);
            return true;
        }
    }
    false
}

/// Adds up what is wasted, window by window.
#[derive(Clone, Copy, Debug)]
pub struct WasteWindows {
    window_ns: u64,
    /// The window that is being added up, counted from 0.
    window: u64,
    sum_ns: u64,
}

impl WasteWindows {
    /// Windows of this length, the first from 0 on.
    ///
    /// # Panics
    /// If `window_ns` is 0.
    pub fn new(window_ns: u64) -> Self {
        assert!(window_ns > 0, "a window has a length");
        Self { window_ns, window: 0, sum_ns: 0 }
    }

    /// From `from_ns` to `to_ns` this many CPUs were wasted. Times do not go back. `full` hears of each window that is over by
    /// then: when it began, and CPU time wasted in it; windows without any are left out, and all but the first thousand of those
    /// in which nothing changes.
    pub fn add(&mut self, from_ns: u64, to_ns: u64, wasted_cpus: u32, mut full: impl FnMut(u64, u64)) {
        const MOST: u32 = 1_000;
        let mut from_ns = from_ns;
        for left in (0..MOST).rev() {
            let end_ns = (self.window + 1).saturating_mul(self.window_ns);
            let part_ns = to_ns.min(end_ns).saturating_sub(from_ns);
            self.sum_ns = self.sum_ns.saturating_add(part_ns.saturating_mul(wasted_cpus.into()));
            if to_ns < end_ns || end_ns == u64::MAX {
                return;
            }
            from_ns = from_ns.max(end_ns);
            let sum_ns = std::mem::take(&mut self.sum_ns);
            if sum_ns > 0 {
                full(self.window * self.window_ns, sum_ns);
            }
            self.window = if wasted_cpus == 0 || left == 0 { to_ns / self.window_ns } else { self.window + 1 };
        }
    }

    /// Waste since the last window that was over, and when that began.
    pub fn unfinished(&self) -> (u64, u64) {
        (self.window * self.window_ns, self.sum_ns)
    }
}

/// How many CPUs were wasted over time, in at most [`WasteCurve::BINS`] pieces of equal length, however long that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WasteCurve {
    /// How long a piece is, in nanoseconds.
    pub bin_ns: u64,
    /// CPU time wasted in each, from 0 on; nothing is in those behind the last.
    pub wasted_ns: Vec<u64>,
}

impl Default for WasteCurve {
    fn default() -> Self {
        Self { bin_ns: 1 << 14, wasted_ns: Vec::new() }
    }
}

impl WasteCurve {
    /// Most pieces that there are; at least half as many, once the time is long enough.
    pub const BINS: usize = 1_024;

    /// From `from_ns` to `to_ns` this many CPUs were wasted.
    pub fn add(&mut self, from_ns: u64, to_ns: u64, wasted_cpus: u32) {
        if wasted_cpus == 0 || from_ns >= to_ns {
            return;
        }
        while to_ns.div_ceil(self.bin_ns) > Self::BINS as u64 {
            self.bin_ns *= 2;
            let sum = |pair: &[u64]| pair.iter().sum();
            self.wasted_ns = self.wasted_ns.chunks(2).map(sum).collect();
        }
        self.wasted_ns.resize(self.wasted_ns.len().max(to_ns.div_ceil(self.bin_ns) as usize), 0);
        for bin in from_ns / self.bin_ns..to_ns.div_ceil(self.bin_ns) {
            let begin_ns = bin * self.bin_ns;
            let part_ns = to_ns.min(begin_ns.saturating_add(self.bin_ns)) - from_ns.max(begin_ns);
            let sum_ns = &mut self.wasted_ns[bin as usize];
            *sum_ns = sum_ns.saturating_add(part_ns.saturating_mul(wasted_cpus.into()));
        }
    }

    /// All that was wasted, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.wasted_ns.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(cpus: &[u32]) -> CpuMask {
        cpus.iter().copied().collect()
    }

    #[test]
    fn each_wasted_cpu_has_a_task_of_its_own() {
        let idle = mask(&[1, 2, 3]);
        assert_eq!(wasted_cpus(&idle, 0, &[]), 0);
        assert_eq!(wasted_cpus(&idle, 2, &[]), 2);
        assert_eq!(wasted_cpus(&idle, 9, &[]), 3);
        assert_eq!(wasted_cpus(&CpuMask::new(), 9, &[mask(&[1])]), 0);
        // Two that may only use CPU 1, which is one CPU; not one that may use CPU 0, which is not idle.
        assert_eq!(wasted_cpus(&idle, 0, &[mask(&[1]), mask(&[1]), mask(&[0])]), 1);
        assert_eq!(wasted_cpus(&idle, 5, &[mask(&[1]), mask(&[1])]), 3);
    }

    #[test]
    fn a_choosy_task_makes_way_for_one_that_is_choosier() {
        let idle = mask(&[1, 2, 3]);
        assert_eq!(wasted_cpus(&idle, 0, &[mask(&[1, 2]), mask(&[1])]), 2);
        assert_eq!(wasted_cpus(&idle, 0, &[mask(&[1, 2]), mask(&[1, 3]), mask(&[1])]), 3);
        assert_eq!(wasted_cpus(&idle, 0, &[mask(&[1, 2]), mask(&[1, 2]), mask(&[1, 2])]), 2);
    }

    #[test]
    fn a_curve_has_few_pieces_and_loses_nothing() {
        let mut curve = WasteCurve::default();
        curve.add(0, 3 << 13, 2);
        assert_eq!(curve.wasted_ns, [2 << 14, 2 << 13]);
        curve.add(1_000_000, 1_000_000, 7);
        curve.add(5_000_000_000, 6_000_000_000, 3);
        curve.add(6_000_000_000, 60_000_000_000, 0);
        assert!(
            (WasteCurve::BINS / 2..=WasteCurve::BINS).contains(&curve.wasted_ns.len()),
            "{}",
            curve.wasted_ns.len()
        );
        assert_eq!(curve.sum_ns(), 2 * (3 << 13) + 3_000_000_000);
        curve.add(u64::MAX - 1, u64::MAX, 1);
        assert_eq!(curve.sum_ns(), 2 * (3 << 13) + 3_000_000_001);
    }

    fn windows(parts: &[(u64, u64, u32)]) -> (Vec<(u64, u64)>, (u64, u64)) {
        let (mut windows, mut full) = (WasteWindows::new(100), Vec::new());
        parts.iter().for_each(|(from, to, cpus)| windows.add(*from, *to, *cpus, |at, sum| full.push((at, sum))));
        (full, windows.unfinished())
    }

    #[test]
    fn time_that_is_wasted_belongs_to_the_window_in_which_it_is() {
        assert_eq!(windows(&[(0, 30, 2), (30, 70, 0), (70, 80, 1)]), (vec![], (0, 70)));
        assert_eq!(windows(&[(0, 30, 2), (30, 100, 0)]), (vec![(0, 60)], (100, 0)));
        assert_eq!(windows(&[(50, 350, 3)]), (vec![(0, 150), (100, 300), (200, 300)], (300, 150)));
        assert_eq!(windows(&[(0, 10, 1), (10, 1_010, 0), (1_010, 1_020, 1)]), (vec![(0, 10)], (1_000, 10)));
        assert_eq!(windows(&[(0, u64::MAX, 0), (u64::MAX, u64::MAX, 5)]).0, []);
    }
}
