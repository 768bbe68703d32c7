//! Requests in a trace: when each came and when it was served, where marks say so.

use std::collections::HashMap;

use ekiden_sim::What;
use ekiden_trace::Trace;

/// One that has been begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) begin_ns: u64,
    /// `u64::MAX` while it is being served.
    pub(super) end_ns: u64,
    /// Who serves it, counted from 0, and how many that one had before.
    pub(super) worker: usize,
    pub(super) nth: usize,
}

/// All requests of a load whose first tasks send them, each with a mark, and whose other tasks mark when they begin with one and when they
/// have served it.
pub(super) struct Requests {
    /// When each came, in order.
    pub(super) arrivals_ns: Vec<u64>,
    /// In the order in which they were begun.
    pub(super) served: Vec<Served>,
}

impl Requests {
    pub(super) fn of(trace: &Trace, senders: usize) -> Self {
        // PIDs are given in the order of the load's tasks.
        let mut first_pid = None;
        let mut arrivals_ns = Vec::new();
        let mut served = Vec::new();
        let mut begun: HashMap<usize, u64> = HashMap::new();
        let mut counts: HashMap<usize, usize> = HashMap::new();
        for record in trace.records() {
            if record.what == What::New {
                first_pid.get_or_insert(record.pid);
            }
            let Some(first_pid) = first_pid.filter(|_| record.what == What::Mark) else { continue };
            match ((record.pid - first_pid) as usize).checked_sub(senders) {
                None => arrivals_ns.push(record.time_ns),
                Some(worker) => match begun.remove(&worker) {
                    None => _ = begun.insert(worker, record.time_ns),
                    Some(begin_ns) => {
                        let count = counts.entry(worker).or_default();
                        served.push(Served { begin_ns, end_ns: record.time_ns, worker, nth: *count });
                        *count += 1;
                    }
                },
            }
        }
        // Those that are still being served began as well; without them others would be taken for theirs.
        let nth = |worker| counts.get(&worker).copied().unwrap_or_default();
        let open = begun.into_iter();
        let open = open.map(|(worker, begin_ns)| Served { begin_ns, end_ns: u64::MAX, worker, nth: nth(worker) });
        served.extend(open);
        served.sort_unstable_by_key(|it| (it.begin_ns, it.end_ns));
        Self { arrivals_ns, served }
    }

    /// From its arrival until it was served, of each that came after `from_ns` and has been. They are served in the order in which they come:
    /// that which begins next is the one that came next.
    pub(super) fn times(&self, from_ns: u64) -> impl Iterator<Item = (u64, Served)> {
        let all = self.arrivals_ns.iter().zip(&self.served);
        let counts = move |(at_ns, it): &(&u64, &Served)| **at_ns >= from_ns && it.end_ns != u64::MAX;
        all.filter(counts).map(|(at_ns, it)| (it.end_ns - at_ns, *it))
    }
}

/// The time that `part` of all are no longer than, in microseconds.
pub(super) fn percentile_us(ns: impl Iterator<Item = u64>, part: f64) -> Option<f64> {
    let mut ns: Vec<u64> = ns.collect();
    ns.sort_unstable();
    ns.get(((ns.len() as f64 * part) as usize).min(ns.len().saturating_sub(1))).map(|ns| *ns as f64 / 1e3)
}
