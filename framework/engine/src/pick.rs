//! A CPU looks for work: which policies are asked, and how an answer is handled.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;

use ekiden::{Call, CpuId, RefusalReason, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{BALANCE_TOO, Event, Message, Outcome, RawToken, Reply, Status, pick_flags};

use crate::conditions::SEVERAL;
use crate::counters::Counters;
use crate::engine::{Engine, Handling};
use crate::fault::ContractViolationKind;
use crate::policy_slots::PolicySlot;
use crate::state::{Phase, State, Transition, UPGRADABLE};
use crate::table::{TaskEntry, token};

/// How many answers of a policy are tried for one search for work before the CPU is sent round again. A policy that
/// keeps the tokens of departed tasks gets that many refused at a time.
pub const PICK_ATTEMPTS: u32 = 64;

/// The longest slice that a policy may give, in nanoseconds. An endless one would let no other task run.
pub const SLICE_NS_MAX: u64 = 1_000_000_000;

/// The rank where no policy's task runs.
pub(crate) const NO_RANK: u32 = u32::MAX;

/// The result of a search for work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Something,
    Nothing,
    /// Only tokens that are worth nothing: the CPU has to come back.
    TooMuch,
}

impl<P: Policy> Engine<P> {
    /// A CPU looks for work: first the task that ran so far goes to the policy, then the policy chooses.
    #[inline]
    pub(crate) fn pick<const CASE: u8>(&self, handling: &mut Handling<'_, CASE>) {
        let Event { cpu, task, .. } = *handling.event;
        if cpu >= self.nr_cpus() {
            handling.outcome.status = Status::Invalid as i32;
            return;
        }
        let before = self.idle.handed.count();
        if handling.event.flags & pick_flags::PREV_RUNNABLE != 0 {
            self.give_way(&mut handling.rare());
        } else if let Some(entry) = self.tasks.get(task) {
            if self.any_group::<CASE>() {
                self.sleeps_in_group(&mut handling.rare(), task, entry);
            }
            let seen = entry.state();
            if UPGRADABLE && !self.is_attached::<CASE>(seen) {
                self.attach(&mut handling.rare(), task, entry);
            } else if seen.phase() == Phase::Running {
                entry.set_state(seen.in_phase(Phase::Blocked));
                let policy_slot = self.policy_slot_of::<CASE>(seen);
                if UPGRADABLE && policy_slot.calls().has(Call::TaskBlocked) {
                    entry.runtime_ns.store(handling.event.runtime_ns, Relaxed);
                    self.slept(handling, policy_slot, task, entry);
                }
            }
        }
        if self.any_unasked() && (self.runs_due(&mut handling.rare()) || self.runs_beyond(&mut handling.rare())) {
            return;
        }
        if CASE == SEVERAL {
            return self.pick_of_several(&mut handling.rare(), cpu, before);
        }
        let policy_slot = &self.policy_slots[0];
        match self.ask_here(handling, policy_slot, cpu, policy_slot.calls().has(Call::Balance)) {
            Found::Something => {}
            Found::Nothing => self.found_nothing(handling, cpu, 1, before),
            // Let the kernel do something else, and come back for the rest.
            Found::TooMuch => handling.outcome.kicks.add(cpu),
        }
    }

    /// Asks one policy of several.
    #[inline(never)]
    pub(crate) fn ask(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
        balance: bool,
    ) -> Found {
        self.ask_here(handling, policy_slot, cpu, balance)
    }

    /// Asks one policy, without a call in between.
    #[inline(always)]
    pub(crate) fn ask_here<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
        balance: bool,
    ) -> Found {
        let mut may_bring = balance;
        match self.ask_once(handling, policy_slot, cpu, &mut may_bring) {
            Some(found) => found,
            None => self.ask_again(&mut handling.rare(), policy_slot, cpu, may_bring),
        }
    }

    /// Its first answer was no good, or it has brought a task that it is to pick now.
    #[cold]
    #[inline(never)]
    fn ask_again(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
        mut may_bring: bool,
    ) -> Found {
        for _ in 1..PICK_ATTEMPTS {
            if self.host.is_spent() {
                break;
            }
            if let Some(found) = self.ask_once(handling, policy_slot, cpu, &mut may_bring) {
                return found;
            }
        }
        self.searched_in_vain(policy_slot, cpu);
        Found::TooMuch
    }

    /// `None` if the policy is to be asked again.
    #[inline(always)]
    fn ask_once<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
        may_bring: &mut bool,
    ) -> Option<Found> {
        let mut message = Message::about_cpu(Call::PickNextTask, cpu);
        message.flags = if *may_bring { BALANCE_TOO } else { 0 };
        let mut room = MaybeUninit::uninit();
        let Reply { token, task, slice_ns, .. } = self.call_into(handling, policy_slot, &message, &[], &mut room);
        if token.is_none() {
            // A task that was brought here is picked next, once.
            if *may_bring && !task.is_none() && self.bring(&mut handling.rare(), policy_slot, *task, cpu) {
                *may_bring = false;
                return None;
            }
            return Some(Found::Nothing);
        }
        if self.run(handling, policy_slot, cpu, token, *slice_ns) {
            return Some(Found::Something);
        }
        (!policy_slot.is_taken()).then_some(Found::Nothing)
    }

    /// The task that ran so far could go on. The policy gets its token before it chooses.
    #[cold]
    fn give_way(&self, handling: &mut Handling<'_>) {
        let event = handling.event;
        let Some(entry) = self.tasks.get(event.task) else { return };
        if self.groups.is_active() && self.waits_in_group(handling, event.task, entry, Phase::ThrottledByTick) {
            return;
        }
        entry.runtime_ns.store(event.runtime_ns, Relaxed);
        if UPGRADABLE && !self.is_attached::<SEVERAL>(entry.state()) {
            self.attach(handling, event.task, entry);
        }
        if entry.choice() != entry.state().policy_slot() {
            self.change_policy(handling, event.task, entry);
        }
        let seen = entry.state();
        self.transit(event.cpu, entry, seen, Transition::GiveWay);
        let call = match seen.phase() {
            Phase::Running if seen.is_yielding() => Call::TaskYield,
            Phase::Running => Call::TaskPreempt,
            Phase::Blocked => Call::TaskWakeup,
            Phase::New | Phase::Free => Call::TaskNew,
            Phase::Ready | Phase::ReadyByTick => return self.ran_unseen(handling, entry, seen),
            // Just released.
            Phase::Throttled | Phase::ThrottledByTick => return,
        };
        if self.groups.is_active() && !self.admit(handling, event.task, entry, call, Phase::ThrottledByTick) {
            return;
        }
        let state = seen.issue(Phase::ReadyByTick, event.cpu);
        entry.set_state(state);
        self.hand_token(handling, call, event.task, entry, state, 0);
        if UPGRADABLE && !self.is_attached::<SEVERAL>(entry.state()) {
            self.attach(handling, event.task, entry);
        }
    }

    /// The kernel bypassed us and ran it; the policy has its token already, for here or elsewhere, and another CPU may be taking it.
    fn ran_unseen(&self, handling: &mut Handling<'_>, entry: &TaskEntry, mut seen: State) {
        let Event { cpu, task, .. } = *handling.event;
        while seen.cpu() == cpu && seen.phase().is_waiting() {
            if entry.try_state(seen, seen.in_phase(Phase::ReadyByTick)) {
                return;
            }
            seen = entry.state();
        }
        if seen.phase().is_waiting() {
            self.move_to(handling, task, entry, seen, cpu, Phase::ReadyByTick);
        }
    }

    /// Checks a token that was picked for `cpu`, and makes its task run if it is good.
    #[inline(always)]
    pub(crate) fn run<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
        raw: &RawToken,
        slice_ns: u64,
    ) -> bool {
        let Some(entry) = self.tasks.get(raw.task) else {
            self.refuse(&mut handling.rare(), policy_slot, cpu, *raw, RefusalReason::Gone, None);
            return false;
        };
        let seen = entry.state();
        let is_good = raw.cpu == cpu && seen.waits_with(raw.serial, cpu);
        let mut slice_ns = slice_ns;
        if is_good && self.any_group::<CASE>() {
            match self.slice_in_group(&mut handling.rare(), raw.task, entry, seen, slice_ns) {
                Some(shorter_ns) => slice_ns = shorter_ns,
                None => return false,
            }
        }
        if !is_good || !entry.try_state(seen, seen.in_phase(Phase::Running)) {
            let reason = if seen.serial() != raw.serial || is_good {
                RefusalReason::Stale
            } else if !seen.phase().is_waiting() {
                RefusalReason::NotReady
            } else {
                RefusalReason::WrongCpu
            };
            self.refuse(&mut handling.rare(), policy_slot, cpu, *raw, reason, Some(entry));
            return false;
        }
        let slice_ns = if slice_ns > SLICE_NS_MAX { self.absurd(policy_slot, cpu, entry) } else { slice_ns };
        let outcome = &mut *handling.outcome;
        outcome.status = if seen.waits_by_tick() { Status::KeepPrevious } else { Status::Run } as i32;
        outcome.task = raw.task;
        outcome.host_task = entry.host_task.load(Relaxed);
        outcome.slice_ns = slice_ns;
        Counters::count(&self.counters_here::<CASE>(cpu, policy_slot).picks);
        if seen.is_claimed() {
            Counters::count(&self.counters(cpu, policy_slot).migrations);
        }
        if self.idle.note(cpu, false) {
            self.found_something(&mut handling.rare(), cpu, raw.task);
        }
        true
    }

    /// The host's default instead of a slice that is too long.
    #[cold]
    fn absurd(&self, policy_slot: &PolicySlot<P>, cpu: CpuId, entry: &TaskEntry) -> u64 {
        self.contract_violation(policy_slot, ContractViolationKind::AbsurdSlice, Call::PickNextTask, cpu, entry);
        0
    }

    /// Moves the task that the policy wishes here, or another one if that cannot be. True if one was moved.
    fn bring(&self, handling: &mut Handling<'_>, policy_slot: &PolicySlot<P>, mut wish: TaskId, cpu: CpuId) -> bool {
        for _ in 0..PICK_ATTEMPTS {
            let Err(reason) = self.pull(handling, policy_slot, wish, cpu) else { return true };
            Counters::count(&self.counters(cpu, policy_slot).refusals);
            if !policy_slot.calls().has(Call::BalanceErr) {
                return false;
            }
            let message = Message { task: wish, flags: reason as u32, ..Message::about_cpu(Call::BalanceErr, cpu) };
            self.call(handling, policy_slot, &message, &[]);
            wish = self.call(handling, policy_slot, &Message::about_cpu(Call::Balance, cpu), &[]).task;
            if wish.is_none() || self.host.is_spent() {
                return false;
            }
        }
        false
    }

    fn pull(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        task: TaskId,
        cpu: CpuId,
    ) -> Result<(), RefusalReason> {
        let entry = self.tasks.get(task).ok_or(RefusalReason::Gone)?;
        let mut seen = entry.state();
        let is_leaving = || entry.state().phase() == Phase::ReadyByTick;
        if seen.phase() == Phase::ReadyByTick && seen.policy_slot() == policy_slot.index {
            // Its CPU kicks this one as soon as the task has left it, unless it has just done so.
            if entry.wish.wish(cpu, is_leaving) {
                return Err(RefusalReason::Busy);
            }
            seen = entry.state();
        }
        if seen.policy_slot() != policy_slot.index {
            // It has another policy by now.
            return Err(RefusalReason::Gone);
        }
        if seen.phase() != Phase::Ready {
            return Err(RefusalReason::NotReady);
        }
        if seen.cpu() == cpu {
            return Err(RefusalReason::WrongCpu);
        }
        if seen.is_moving() {
            // Another CPU was faster. The policy would hear of the two moves in any order.
            return Err(RefusalReason::Stale);
        }
        if !self.host.may_run(task, cpu) {
            return Err(RefusalReason::NotAllowed);
        }
        if self.move_to(handling, task, entry, seen, cpu, Phase::Ready) { Ok(()) } else { Err(RefusalReason::Stale) }
    }

    /// Exchanges the token of a waiting task for one for `cpu`. False if another CPU was faster.
    ///
    /// Nothing keeps the kernel from doing something with the task while the policy is told of this, and a CPU may stand still for long
    /// where it is emulated. Then the policy hears of it in the other order, which is no contract violation of its own.
    pub(crate) fn move_to(
        &self,
        handling: &mut Handling<'_>,
        task: TaskId,
        entry: &TaskEntry,
        seen: State,
        cpu: CpuId,
        phase: Phase,
    ) -> bool {
        let state = seen.issue(phase, cpu);
        if !entry.try_state(seen, state.moving()) {
            return false;
        }
        let policy_slot = self.policy_slot_of::<SEVERAL>(seen);
        Counters::count(&self.counters(cpu, policy_slot).migrations);
        let mut message = self.message(handling, Call::MigrateTaskRq, task, entry).with_token(token(task, state));
        message.cpu = cpu;
        let old = self.call(handling, policy_slot, &message, &[]).token;
        let is_alone = entry.try_state(state.moving(), state) && !seen.is_moving();
        if old.is_none() || old == token(task, seen) {
            return true;
        }
        let is_crossed = !is_alone && old.task == task;
        if !is_crossed {
            self.contract_violation(
                policy_slot,
                ContractViolationKind::WrongTokenReturned,
                Call::MigrateTaskRq,
                cpu,
                entry,
            );
        }
        // What it gave back may be the only token of another task.
        self.reissue(handling, policy_slot, old, (!is_crossed).then_some(Call::MigrateTaskRq));
        true
    }

    /// The task was woken for an idle CPU: asks the policy right away what that CPU is to run, so that the CPU does not
    /// have to. Whether it runs the task.
    pub(crate) fn pick_for_idle<const CASE: u8>(
        &self,
        handling: &mut Handling<'_, CASE>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
        woken: TaskId,
    ) -> bool {
        let reply = self.call(handling, policy_slot, &Message::about_cpu(Call::PickNextTask, cpu), &[]);
        let runs = !reply.token.is_none() && self.run(handling, policy_slot, cpu, &reply.token, reply.slice_ns);
        if !runs || handling.outcome.task == woken {
            if CASE == SEVERAL {
                self.has_cpu(cpu, policy_slot.index);
            }
            return runs;
        }
        // Another task of that CPU comes first. The host can only place the woken one from here, so the other waits
        // until the CPU asks for it, which it does now.
        let picked = handling.outcome.task;
        *handling.outcome = Outcome { kicks: handling.outcome.kicks, ..Outcome::default() };
        handling.outcome.kicks.add(cpu);
        if let Some(entry) = self.tasks.get(picked) {
            // From another queue, it may have been put there anew meanwhile.
            let seen = entry.state();
            if seen.phase() == Phase::Running && seen.cpu() == cpu {
                self.wait_again(&mut handling.rare(), picked, entry, seen, cpu, RefusalReason::Busy);
            }
        }
        false
    }

    /// The task was woken for an idle CPU that does not run it after all: another one may look for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn kick_another(&self, handling: &mut Handling<'_>, task: TaskId) {
        if let Some(idle) = self.idle.take(task, None, None, |cpu| self.host.may_run(task, cpu)) {
            handling.outcome.kicks.add(idle);
        }
    }

    /// The host could not run what was picked: the task waits again, where the kernel has it.
    pub(crate) fn pick_refused(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry) {
        Counters::count(&self.counters(handling.event.cpu, self.policy_slot_of::<SEVERAL>(entry.state())).refusals);
        let reason = RefusalReason::from_number(handling.event.args[0] as u32);
        let (seen, by) = (entry.state(), handling.event.args[1]);
        if seen.phase() == Phase::New {
            return self.refused_unheard(handling, task, entry, seen);
        }
        // Enqueued again since it was picked, by a change of its affinity: its policy has the new token.
        let is_overtaken = by != 0 && (seen.phase() != Phase::Running || u64::from(seen.cpu()) + 1 != by);
        if !is_overtaken {
            self.wait_again(handling, task, entry, seen, handling.event.cpu, reason);
        }
        // It is the kernel's idea that the task is there: that CPU may be idle, and the policy thinks that it was asked.
        handling.outcome.kicks.add(handling.event.cpu);
    }

    /// A task of which its policy has not heard, because it had a turn without it or has changed its policy since it was picked, does not run after
    /// all. No policy holds a token of it.
    #[cold]
    fn refused_unheard(&self, handling: &mut Handling<'_>, task: TaskId, entry: &TaskEntry, seen: State) {
        let cpu = handling.event.cpu;
        self.transit(cpu, entry, seen, Transition::Refuse);
        let state = seen.issue(Phase::Ready, cpu);
        // If that fails, the kernel has put it on its queue anew.
        if entry.try_state(seen, state) {
            if self.groups.is_active() {
                self.wants_to_run(task, entry);
            }
            self.hand_token(handling, Call::TaskNew, task, entry, state, 0);
        }
        handling.outcome.kicks.add(cpu);
    }

    /// A task that was picked does not run after all, and waits on `cpu` again.
    pub(crate) fn wait_again(
        &self,
        handling: &mut Handling<'_>,
        task: TaskId,
        entry: &TaskEntry,
        seen: State,
        cpu: CpuId,
        reason: RefusalReason,
    ) {
        self.transit(cpu, entry, seen, Transition::Refuse);
        let state = seen.issue(Phase::Ready, cpu);
        // If that fails, the kernel has put it on its queue anew.
        if !entry.try_state(seen, state) {
            return;
        }
        let mut message = self.message(handling, Call::PntErr, task, entry).with_token(token(task, state));
        message.cpu = cpu;
        message.flags = reason as u32;
        self.call(handling, self.policy_slot_of::<SEVERAL>(state), &message, &[]);
    }

    /// Hands back a token that cannot be honoured.
    #[cold]
    fn refuse(
        &self,
        handling: &mut Handling<'_>,
        policy_slot: &PolicySlot<P>,
        cpu: CpuId,
        raw: RawToken,
        reason: RefusalReason,
        entry: Option<&TaskEntry>,
    ) {
        Counters::count(&self.counters(cpu, policy_slot).refusals);
        if let (RefusalReason::WrongCpu, Some(entry)) = (reason, entry) {
            // The other reasons arise when a task dies or moves while it waits, which no policy can help.
            self.contract_violation(
                policy_slot,
                ContractViolationKind::Refused(reason),
                Call::PickNextTask,
                cpu,
                entry,
            );
        }
        let mut message = match entry {
            Some(entry) => self.message(handling, Call::PntErr, raw.task, entry),
            None => Message { task: raw.task, ..Message::about_cpu(Call::PntErr, cpu) },
        };
        message.cpu = cpu;
        message = message.with_token(raw);
        message.flags = reason as u32;
        self.call(handling, policy_slot, &message, &[]);
        if matches!(reason, RefusalReason::Stale | RefusalReason::Gone) {
            self.refused_for_good(policy_slot, cpu, raw);
        }
    }
}
