//! What a policy answered, beside what is recorded.

use ekiden::{Calls, CpuMask};
use ekiden_host::abi::{Call, Message, Noted, RawToken, RefusalReason, Reply};

use crate::Considered;
use crate::flight::{Done, Job, Order};
use crate::outcome::{self, Difference, Exact, Past};

use super::{Mode, PICKS_MAX, Pending, Run, SHOWN};

impl Run<'_> {
    #[inline]
    pub(super) fn ended(&mut self, cpu: u32, done: Done) {
        let Some(pending) = self.pending[cpu as usize].take() else { return };
        let Done { job, reply, taken, noted, considered } = done;
        let Some(recorded) = pending.call.recorded else { return self.ended_unlike_recorded(cpu, pending, reply) };
        let is_same = |reply: &Reply| Reply { dropped: RawToken::NONE, ..*reply } == recorded;
        let unlike = if pending.picks > 0 { None } else { missing(&job.noted, &noted) };
        let has_learnt_the_same = taken == job.notes.len() || pending.picks > 0;
        let is_exact = reply.as_ref().is_ok_and(is_same) && has_learnt_the_same && unlike.is_none();
        if is_exact {
            self.recorded_state.picked(recorded.token);
            self.agrees(&pending.call);
            self.tell_considered(&pending.call, considered);
            return self.remember(pending.call);
        }
        if let (true, Ok(reply)) = (self.made_up || self.mode != Mode::Exact, &reply) {
            let token = reply.token;
            let is_stale = !token.is_none() && token != recorded.token && !self.recorded_state.waits(token);
            if is_stale && job.message.call == Call::PickNextTask as u32 && pending.picks < PICKS_MAX {
                return self.pick_again(cpu, pending, token);
            }
        }
        let what = match &reply {
            Err(panic) => format!("the policy panicked: {panic}"),
            Ok(reply) if !is_same(reply) => "it answered differently".to_owned(),
            Ok(_) if has_learnt_the_same => {
                format!("it noted {}, and in the replay {}", listed(&job.noted), listed(&noted))
            }
            Ok(_) => format!("it learnt {} things, and {taken} in the replay", job.notes.len()),
        };
        let has_panicked = reply.is_err();
        let reply = reply.ok();
        self.differs(pending.call, what, reply);
        let token = reply.map_or(RawToken::NONE, |reply| reply.token);
        if !token.is_none() && token != recorded.token && job.message.call == Call::PickNextTask as u32 {
            // What ran is what ran: the policy has to live with it.
            self.hand_back(cpu, token);
        }
        self.recorded_state.picked(recorded.token);
        if has_panicked {
            self.lose();
        }
    }

    #[inline]
    pub(super) fn tell_considered(&mut self, call: &Past, cpus: CpuMask) {
        const DECISIONS: Calls = Calls::NONE.with(Call::SelectTaskRq).with(Call::Balance).with(Call::PickNextTask);
        let Some(tell) = &mut self.considered else { return };
        if DECISIONS.has_number(call.message.call) && cpus.iter().any(|cpu| cpu != call.message.cpu) {
            tell(Considered { call: call.clone(), cpus });
        }
    }

    /// In the recording this call has no end.
    #[cold]
    pub(super) fn ended_unlike_recorded(&mut self, cpu: u32, pending: Pending, reply: Result<Reply, String>) {
        match reply {
            Err(panic) => {
                let Past { number, .. } = pending.call;
                self.outcome.remark(format!("call {number} panics as it did when it was recorded: {panic}"));
                self.agrees(&pending.call);
            }
            // Whether that is right is known when the mark of a fault follows, or does not.
            Ok(_) => self.pending[cpu as usize] = Some(pending),
        }
    }

    pub(super) fn pick_again(&mut self, cpu: u32, pending: Pending, stale: RawToken) {
        self.hand_back(cpu, stale);
        let Some(policy) = self.policy.clone() else { return };
        let message = pending.call.message;
        self.pending[cpu as usize] = Some(Pending { picks: pending.picks + 1, ..pending });
        if let Some(done) = self.flight.begin(cpu, Job::told(policy, message)) {
            self.ended(cpu, done);
        }
    }

    /// The policy picked what did not run.
    pub(super) fn hand_back(&mut self, cpu: u32, token: RawToken) {
        let reason = if self.recorded_state.waits(token) { RefusalReason::NotAllowed } else { RefusalReason::Stale };
        let message = self.recorded_state.about(Call::PntErr, cpu, token);
        self.tell(cpu, Message { flags: reason as u32, ..message });
    }

    #[inline]
    pub(super) fn agrees(&mut self, past: &Past) {
        match self.mode {
            Mode::Exact => {}
            Mode::Unsure(agreeing) if agreeing + 1 < self.options.agreeing => {
                self.mode = Mode::Unsure(agreeing + 1);
                if agreeing > 0 {
                    return self.goes_on_exactly(past);
                }
                self.exact = Some(Exact::at(past, false));
                return;
            }
            _ => {
                self.mode = Mode::Exact;
                self.flight.order(Order::Strict);
            }
        }
        self.goes_on_exactly(past);
    }

    #[inline]
    pub(super) fn goes_on_exactly(&mut self, past: &Past) {
        match &mut self.exact {
            Some(exact) => exact.goes_on(past),
            None => self.exact = Some(Exact::at(past, true)),
        }
    }

    /// Notes the exact part up to here, if it was long enough.
    pub(super) fn stop_being_exact(&mut self) {
        let exact = self.exact.take();
        if let Some(exact) = exact.filter(|_| self.mode == Mode::Exact) {
            self.outcome.was_exact(exact);
        }
    }

    #[cold]
    pub(super) fn differs(&mut self, past: Past, what: String, replayed: Option<Reply>) {
        self.remember(past.clone());
        let was_exact = self.mode == Mode::Exact;
        self.stop_being_exact();
        self.mode = Mode::Unsure(0);
        self.flight.order(Order::Loose);
        let (count, first) = if self.made_up {
            (&mut self.outcome.not_exact, &self.outcome.first_not_exact)
        } else {
            (&mut self.outcome.differences, &self.outcome.first)
        };
        *count += 1;
        if !was_exact || first.is_some() {
            return;
        }
        // They are remembered as they end.
        let under_way = self.pending.iter().flatten().map(|pending| &pending.call);
        let mut known: Vec<&Past> = self.history.iter().chain(under_way).collect();
        known.sort_by_key(|call| call.number);
        let earlier = || known.iter().rev().copied().filter(|call| call.number < past.number);
        let mut before: Vec<Past> = earlier().take(SHOWN).cloned().collect();
        let of_reply = |reply: Option<Reply>| reply.map_or(past.message.task, |reply| reply.token.task);
        let task = if past.message.task.is_none() { of_reply(past.recorded) } else { past.message.task };
        let task = if task.is_none() { of_reply(replayed) } else { task };
        let is_about = |call: &&Past| call.message.task == task || of_reply(call.recorded) == task;
        let mut history: Vec<Past> =
            if task.is_none() { Vec::new() } else { earlier().filter(is_about).take(SHOWN).cloned().collect() };
        before.reverse();
        history.reverse();
        let waiting = self.flight.all_waiting().map(|(cpu, wait, _)| (cpu, wait));
        let locks = outcome::locks(&self.flight.held(), waiting);
        let later = known.iter().copied().filter(|call| call.number > past.number);
        let after: Vec<Past> = later.take(SHOWN).cloned().collect();
        self.after = SHOWN - after.len();
        let first = if self.made_up { &mut self.outcome.first_not_exact } else { &mut self.outcome.first };
        *first = Some(Difference { call: past, what, replayed, before, after, locks, history });
    }
}

/// The first note of the recording that was not made again, in its order. A policy may make others by now: those who look for
/// something in a recording add them.
fn missing<'a>(recorded: &'a [Noted], replayed: &[Noted]) -> Option<&'a Noted> {
    let mut replayed = replayed.iter();
    recorded.iter().find(|note| !replayed.any(|other| other == *note))
}

fn listed(notes: &[Noted]) -> String {
    if notes.is_empty() { "nothing".into() } else { notes.iter().map(Noted::to_string).collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use ekiden_host::abi::NoteName;

    use super::*;

    #[test]
    fn notes_of_the_recording_come_again_and_others_may_too() {
        let [a, b, c] = ["a", "b", "c"].map(|name| Noted { name: NoteName::new(name).unwrap(), value: 1 });
        let other_value = Noted { value: 2, ..b };
        assert_eq!(missing(&[], &[a]), None);
        assert_eq!(missing(&[a, b], &[a, c, b]), None);
        assert_eq!(missing(&[a, b], &[b, a]), Some(&b));
        assert_eq!(missing(&[a, b], &[a, other_value]), Some(&b));
        assert_eq!(missing(&[a], &[]), Some(&a));
    }
}
