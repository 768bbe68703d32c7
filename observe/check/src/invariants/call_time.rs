//! No call into the policy takes longer than it may: interrupts are off meanwhile, and the CPU does nothing else.
//!
//! Exempt: nothing. Not seen: what hosts do around a call, and calls that the host does not note; the simulator notes none,
//! as time stands still there while a policy thinks.

use ekiden_trace::{Record, What};

use crate::{Check, View, Violation};

/// No call takes too long.
pub struct CallTime {
    call_ns: u64,
}

impl CallTime {
    /// With the time that a call may take, in nanoseconds.
    pub fn new(call_ns: u64) -> Self {
        Self { call_ns }
    }
}

impl Check for CallTime {
    fn name(&self) -> &'static str {
        "call-time"
    }

    fn record(&mut self, view: &View, record: &Record, found: &mut Vec<Violation>) {
        let Record { cpu, what, pid, value: took_ns, .. } = *record;
        if what == What::Call && took_ns > self.call_ns {
            found.push(Violation {
                check: self.name(),
                since_ns: view.now_ns.saturating_sub(took_ns),
                at_ns: view.now_ns,
                cpus: vec![cpu],
                tasks: (pid != 0).then(|| view.name(pid)).into_iter().collect(),
                message: format!(
                    "a call into the policy kept CPU {cpu} for {} us; {} us are allowed",
                    took_ns / 1_000,
                    self.call_ns / 1_000
                ),
            });
        }
    }
}
