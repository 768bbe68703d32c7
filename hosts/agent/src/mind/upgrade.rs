//! A policy that takes over from the one of now (papers/000, section 3.3). No CPU has to stand still for that: no thread calls policies but this one.

use ekiden::Saved;
use ekiden_engine::Fault;
use ekiden_host::abi::{Event, EventKind, Outcome};
use ekiden_host::{Figures, Knows, Policy};
use ekiden_loader::{Moved, Upgrade};

use crate::{call_log::paused, host::now_ns};

use super::{Mind, contained};

/// So many tasks are introduced before the CPUs that they wait for hear of it.
const INTRODUCED_AT_ONCE: u32 = 256;

/// Makes the successor of the policy of now, and has its calls written down as that one's are.
pub(crate) type Succeed = Box<dyn FnOnce(Box<dyn Policy>) -> (Box<dyn Policy>, Knows) + Send>;

impl Mind {
    /// A policy takes over. A panic of either takes both out, as what the old one handed over is gone: `None`.
    pub(crate) fn upgrade(&mut self, succeed: Succeed) -> Option<(Upgrade, Figures)> {
        let began_ns = now_ns();
        // What the old one has decided counts.
        self.fire();
        match contained(|| self.replace(succeed)) {
            Ok((knows, figures)) => {
                let moved = if knows == Knows::All { Moved::ByPointer } else { Moved::StartedOver };
                let wait_ns = now_ns().saturating_sub(began_ns);
                Some((Upgrade { moved, wait_ns, tasks: self.nr_tasks() }, figures))
            }
            Err(message) => {
                self.engine.take_out(Fault { message, cpu: 0 });
                None
            }
        }
    }

    /// Has the policy save itself, where there is room. How many bytes that is; no number if they do not fit. A panic takes it out: `None`.
    pub(crate) fn save(&mut self, room: &mut [u8]) -> Option<Option<usize>> {
        let mut saved = Saved::new(room);
        let done = contained(|| paused(|| self.engine.policy(0).map(|policy| policy.save(&mut saved))));
        match done {
            Ok(_) => Some(saved.written()),
            Err(message) => {
                self.engine.take_out(Fault { message, cpu: 0 });
                None
            }
        }
    }

    fn replace(&mut self, succeed: Succeed) -> (Knows, Figures) {
        let mut what = (Knows::All, Figures::default());
        self.engine.replace_policy(0, |old| {
            let (policy, knows) = succeed(old);
            what = (knows, policy.figures());
            policy
        });
        self.shared.set_calls(self.engine.calls());
        self.begins_eager();
        if what.0 == Knows::Nothing {
            self.start_over();
        }
        what
    }

    fn start_over(&mut self) {
        // Those are the old one's.
        self.timers_ns.fill(0);
        self.has_timers = false;
        let mut outcome = Outcome::default();
        self.engine.start_over(0, &mut outcome);
        self.carry_out(0, &outcome);
        let mut next = Some(0);
        while let Some(first) = next {
            let mut outcome = Outcome::default();
            next = self.engine.introduce(first, INTRODUCED_AT_ONCE, &mut outcome);
            self.shared.beats();
            self.carry_out(0, &outcome);
        }
        for cpu in (0..self.nr_cpus).filter(|cpu| !self.questions.is_online(*cpu)).collect::<Vec<_>>() {
            self.deliver(&Event::new(EventKind::CpuOffline, cpu), &[]);
        }
    }
}
