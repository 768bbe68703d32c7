//! What schedulers promise, one promise a file.

mod affinity;
mod bandwidth;
mod call_time;
mod double_run;
mod fairness;
mod kicks;
mod locks;
mod lost_task;
mod upgrade;
mod wait_bound;
mod wasted_time;
mod work_conservation;

use ekiden_trace::Header;

pub use affinity::Affinity;
pub use bandwidth::Bandwidth;
pub use call_time::CallTime;
pub use double_run::DoubleRun;
pub use fairness::FairnessLag;
pub use kicks::KickCompleteness;
pub use locks::Locks;
pub use lost_task::LostTask;
pub use upgrade::UpgradeKeepsTasks;
pub use wait_bound::WaitBound;
pub use wasted_time::WastedTime;
pub use work_conservation::WorkConservation;

use crate::{Check, Limits};

/// All of them.
pub fn all(header: &Header, limits: &Limits) -> Vec<Box<dyn Check>> {
    let mut all: Vec<Box<dyn Check>> = vec![
        Box::new(DoubleRun),
        Box::new(Affinity),
        Box::new(LostTask::new(limits.kick_ns, limits.wait_ns)),
        Box::new(WaitBound::new(limits.wait_ns)),
        Box::new(KickCompleteness::new(limits.kick_ns, header.cpus.len())),
        Box::new(WorkConservation::new(limits.every_ns, limits.persists_ns)),
        Box::new(WastedTime::new(limits.window_ns, limits.waste_permille, limits.patience_ns, header.cpus.len())),
        Box::new(Bandwidth::new(header.cpus.len())),
        Box::new(CallTime::new(limits.call_ns)),
        Box::new(Locks::new(header.cpus.len())),
        Box::new(UpgradeKeepsTasks::new(limits.upgrade_ns)),
    ];
    if let Some(lag_ns) = limits.lag_ns {
        all.push(Box::new(FairnessLag::new(lag_ns, header.cpus.len())));
    }
    all
}
