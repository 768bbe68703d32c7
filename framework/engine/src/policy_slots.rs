//! Several policies at once: each has a policy slot, in the order in which they are asked; each task is attached to one of them
//! (papers/001, section III).

use core::mem::{self, MaybeUninit};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use ekiden::{Calls, CpuMask, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{Event, Kicks, Message, Outcome, Reply};
use spin::Once;

use crate::conditions::SEVERAL;
use crate::counters::Totals;
use crate::engine::{Engine, Handling};
use crate::fault::{Checks, ContractViolation, Fault, UnexpectedTransition};
use crate::lock::Lock;
use crate::notices::bit;
use crate::shares::Share;
use crate::state::{Attachment, Phase};
use crate::table::How;

/// How many policies there can be at once.
pub const POLICY_SLOTS: usize = 8;

/// The place of one policy. Its size is a power of two, so that finding it takes two instructions.
#[repr(align(256))]
pub(crate) struct PolicySlot<P> {
    pub(crate) index: usize,
    policy: Once<P>,
    calls: AtomicU64,
    /// What its policy declares for tasks, by its fingerprint.
    params_declared: AtomicU64,
    /// The policy has not been told of tasks of any other attachment to this policy slot. It is `NOWHERE` while there is no policy.
    attachment: AtomicU64,
    /// The attachment of the policy that was here last.
    last_attachment: AtomicU64,
    /// How many tasks are attached here.
    pub(crate) tasks: AtomicU32,
    /// Counts what can change the answer of the policy to a CPU that looks for work. Used only if there are several.
    pub(crate) heard: AtomicU32,
    pub(crate) contract_violations: AtomicU32,
    /// How many of them were those of policies before this one.
    pub(crate) contract_violations_before: AtomicU32,
    pub(crate) last_contract_violation: Lock<Option<ContractViolation>>,
    /// A number of [`Checks`].
    checks: AtomicU32,
    pub(crate) last_unexpected_transition: Lock<Option<UnexpectedTransition>>,
    fault: Lock<Option<Fault>>,
}

impl<P: Policy> PolicySlot<P> {
    pub(crate) fn free(index: usize) -> Self {
        Self {
            index,
            policy: Once::new(),
            calls: AtomicU64::new(Calls::NONE.0),
            params_declared: AtomicU64::new(0),
            attachment: AtomicU64::new(Attachment::NOWHERE.0),
            last_attachment: AtomicU64::new(Attachment::in_policy_slot(index).0),
            tasks: AtomicU32::new(0),
            heard: AtomicU32::new(1),
            contract_violations: AtomicU32::new(0),
            contract_violations_before: AtomicU32::new(0),
            last_contract_violation: Lock::new(None),
            checks: AtomicU32::new(Checks::default() as u32),
            last_unexpected_transition: Lock::new(None),
            fault: Lock::new(None),
        }
    }

    /// Calls the policy. Without one, the reply is the default.
    #[inline]
    pub(crate) fn deliver<'a, const CASE: u8>(
        &self,
        message: &Message,
        payload: &[u8],
        reply: &'a mut MaybeUninit<Reply>,
    ) -> &'a mut Reply {
        match self.policy.get() {
            Some(policy) => policy.deliver_to(message, payload, reply, CASE != SEVERAL),
            None => reply.write(Reply::default()),
        }
    }

    /// It may answer otherwise from now on.
    #[inline]
    pub(crate) fn has_heard(&self) {
        self.heard.fetch_add(1, Release);
    }

    #[inline]
    pub(crate) fn checks(&self) -> Checks {
        Checks::from_number(self.checks.load(Relaxed)).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn attachment(&self) -> Attachment {
        Attachment(self.attachment.load(Acquire))
    }

    /// Whether a policy is here that can be called.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.attachment() != Attachment::NOWHERE
    }

    #[inline]
    pub(crate) fn policy(&self) -> Option<&P> {
        self.policy.get()
    }

    /// What its policy listens to.
    #[inline]
    pub(crate) fn calls(&self) -> Calls {
        Calls(self.calls.load(Relaxed))
    }

    pub(crate) fn params_declared(&self) -> u64 {
        self.params_declared.load(Relaxed)
    }

    /// It is called from here on. The policy slot is empty, or its policy has left.
    fn put(&self, policy: P) -> Result<(), P> {
        let (calls, params_declared) = (policy.calls(), policy.params_declared());
        match self.policy.get() {
            Some(left) => left.follow(policy)?,
            None => _ = self.policy.call_once(|| policy),
        }
        self.calls.store(calls.0, Relaxed);
        self.params_declared.store(params_declared, Relaxed);
        Ok(())
    }

    /// No event that begins from here on calls the policy.
    pub(crate) fn leave(&self) {
        self.attachment.store(Attachment::NOWHERE.0, Release);
        self.calls.store(Calls::NONE.0, Relaxed);
        if let Some(policy) = self.policy.get() {
            policy.leave();
        }
    }

    pub(crate) fn take_out(&mut self) -> Option<P> {
        mem::take(&mut self.policy).try_into_inner()
    }

    /// A policy comes that knows none of the tasks. A CPU that sees the new attachment sees all of it. The policy comes back if the one that has left
    /// has to be [taken out](Self::take_out) first.
    pub(crate) fn take(&self, policy: P) -> Result<(), P> {
        self.put(policy)?;
        self.forget_contract_violations();
        *self.fault.lock() = None;
        self.checks.store(Checks::default() as u32, Relaxed);
        *self.last_unexpected_transition.lock() = None;
        self.move_attachment();
        self.has_heard();
        Ok(())
    }

    fn forget_contract_violations(&self) {
        self.contract_violations_before.store(self.contract_violations.load(Relaxed), Relaxed);
    }

    /// It has not been told of any task.
    fn move_attachment(&self) {
        let attachment = Attachment(self.last_attachment.load(Relaxed)).next();
        self.last_attachment.store(attachment.0, Relaxed);
        self.attachment.store(attachment.0, Release);
    }
}

/// A policy as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySlotView {
    /// Its policy slot.
    pub policy_slot: usize,
    /// Whether it is called; if not, it was taken out.
    pub is_alive: bool,
    /// Whether tasks for which no policy was chosen have it.
    pub is_default: bool,
    /// How many tasks have it.
    pub tasks: u32,
    /// How many contract violations of it the engine has put right.
    pub contract_violations: u32,
    /// The newest of them.
    pub last_contract_violation: Option<ContractViolation>,
    /// How the engine treats it when a task of its changes its state in an unexpected way.
    pub checks: Checks,
    /// The newest change of a task's state that is in no row of the table.
    pub last_unexpected_transition: Option<UnexpectedTransition>,
    /// Why the engine has taken it out, if it did.
    pub fault: Option<Fault>,
    /// Sums of what the CPUs counted.
    pub totals: Totals,
    /// Its share of the machine.
    pub share: Share,
    /// The CPUs that are its own; none if it has no set.
    pub cpus: CpuMask,
}

/// Why a policy was not chosen for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotChosen {
    /// There is no such task.
    NoTask,
    /// No policy has this policy slot.
    NoPolicy,
    /// A process with CAP_SYS_NICE has chosen for it.
    ByRoot,
}

impl<P: Policy> Engine<P> {
    /// The policies, in the order in which they are asked.
    pub fn policy_slots(&self) -> impl Iterator<Item = PolicySlotView> {
        self.in_order().map(|policy_slot| {
            let mut totals = Totals::default();
            self.cpus.iter().for_each(|cpu| cpu.counters[policy_slot.index].add_to(&mut totals));
            let (share, cpus) = self.share_of(policy_slot.index);
            PolicySlotView {
                policy_slot: policy_slot.index,
                is_alive: policy_slot.is_taken(),
                is_default: self.default_policy_slot() == policy_slot.index,
                tasks: policy_slot.tasks.load(Relaxed),
                contract_violations: policy_slot.contract_violations.load(Relaxed),
                last_contract_violation: *policy_slot.last_contract_violation.lock(),
                checks: policy_slot.checks(),
                last_unexpected_transition: *policy_slot.last_unexpected_transition.lock(),
                fault: policy_slot.fault.lock().clone(),
                totals,
                share,
                cpus,
            }
        })
    }

    /// The policy slots that are taken, in the order in which their policies are asked.
    pub fn order(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        self.order.get().policy_slots()
    }

    /// The places of the policies in [`order`](Self::order).
    #[inline]
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &PolicySlot<P>> {
        self.order.get().policy_slots().map(|policy_slot| &self.policy_slots[policy_slot % POLICY_SLOTS])
    }

    /// Whether there is a policy in this policy slot that is called.
    pub fn is_alive(&self, policy_slot: usize) -> bool {
        self.policy_slots.get(policy_slot).is_some_and(PolicySlot::is_taken)
    }

    /// Whether there is no policy left.
    pub fn is_over(&self) -> bool {
        self.conditions.are_over()
    }

    /// The policy slot of the policy that gets the tasks for which no policy was chosen.
    pub fn default_policy_slot(&self) -> usize {
        self.default_policy_slot.load(Relaxed) as usize % POLICY_SLOTS
    }

    /// Chooses the policy of a task, and, if it `inherits`, of the children that it has from now on; `None` for the default
    /// one. Takes effect when the task next waits for a CPU. What was chosen `by_root`, who may change the priority of any
    /// task, only root changes.
    ///
    /// # Errors
    /// If there is no such task or policy, or root has chosen.
    pub fn choose(
        &self,
        task: TaskId,
        policy_slot: Option<usize>,
        inherits: bool,
        by_root: bool,
    ) -> Result<(), NotChosen> {
        let entry = self.tasks.get(task).ok_or(NotChosen::NoTask)?;
        let may = |how: How| by_root || !how.has(How::BY_ROOT);
        match policy_slot {
            Some(policy_slot) if !self.policy_slots.get(policy_slot).is_some_and(PolicySlot::is_taken) => {
                Err(NotChosen::NoPolicy)
            }
            Some(policy_slot) => {
                let how = How::CHOSEN.with(How::INHERITED, inherits).with(How::BY_ROOT, by_root);
                entry.choose(task, policy_slot, how, may)
            }
            None => entry.choose(task, self.default_policy_slot(), How::NOT, may),
        }
    }

    /// Swaps the policy in a policy slot for its successor. No event may be under way; `&mut self` says so.
    pub fn replace_policy(&mut self, policy_slot: usize, swap: impl FnOnce(P) -> P) {
        self.begins_pace(policy_slot);
        let policy_slot = &mut self.policy_slots[policy_slot];
        if let Some(new) = policy_slot.take_out().map(swap) {
            // It is empty.
            let _ = policy_slot.put(new);
        }
        self.note_listeners();
    }

    /// Detaches all tasks of a policy slot from a policy that has just [replaced](Self::replace_policy) another one, and took
    /// over no state from it. The policy hears of a task when the next event is about it, or when [`introduce`](Self::introduce)
    /// comes to it: one that waits is new to it then, any other when it comes to wait for a CPU. So every task has a policy
    /// all the time.
    ///
    /// All tasks have to be introduced before the next policy takes over. `outcome` comes in zeroed, and asks for what the
    /// policy wants at once. No event may be under way; `&mut self` says so.
    ///
    /// Cost: one call for each idle CPU, if the policy asks for that; none for tasks.
    pub fn start_over(&mut self, policy_slot: usize, outcome: &mut Outcome) {
        let index = policy_slot;
        let policy_slot = &mut self.policy_slots[policy_slot];
        if *policy_slot.attachment.get_mut() != Attachment::NOWHERE.0 {
            policy_slot.move_attachment();
        }
        policy_slot.forget_contract_violations();
        self.forget_told(index);
        self.tell_of_idle_cpus(index, outcome);
    }

    /// Tells policies of tasks that are not attached to theirs, in at most `most` entries from `first` on; events may come
    /// meanwhile. Returns where to go on, or `None` when they have heard of all: every CPU looks for work then, as what runs
    /// was chosen by another policy.
    ///
    /// Cost: one look for each entry that was ever in use, and one call for each task that waits.
    pub fn introduce(&self, first: u32, most: u32, outcome: &mut Outcome) -> Option<u32> {
        let event = Event::default();
        let handling = &mut Handling::<SEVERAL> { event: &event, outcome };
        let mut end = first.saturating_add(most);
        if first == 0 {
            // A policy that is alone now is told of everything at once from here on.
            self.tell_all_missed(handling);
        }
        for view in self.tasks.between(first, end) {
            let Some(entry) = self.tasks.get(view.id) else { continue };
            if !self.policy_slots[entry.choice()].is_taken() {
                // The choice was not meant for a policy that comes to that policy slot later.
                entry.choose_for_all(view.id, self.default_policy_slot());
            }
            if self.is_attached::<SEVERAL>(view.state) && !self.is_to_leave(entry, view.state) {
                continue;
            }
            if self.leaving.load(Relaxed) & bit(view.state.policy_slot()) == 0 {
                self.attach(handling, view.id, entry);
            } else if view.state.phase() == Phase::Ready {
                self.introduce_one(handling, view.id, entry, view.state);
            } else {
                // An event that still takes it for a task of the policy that goes may still write its state, whatever that is by then.
                continue;
            }
            if self.idle.contains(view.state.cpu()) && !handling.outcome.kicks.is_all() {
                handling.outcome.kicks.add(view.state.cpu());
            }
            if self.host.is_spent() {
                end = end.min(view.id.slot + 1);
                break;
            }
        }
        let next = (end < self.tasks.untouched()).then_some(end);
        if next.is_none() {
            handling.outcome.kicks = Kicks::ALL;
        }
        self.end(handling);
        next
    }

    /// Chooses what is done about the policy in a policy slot when a task of its changes its state in an unexpected way. False if
    /// there is none.
    pub fn check(&self, policy_slot: usize, checks: Checks) -> bool {
        let policy_slot = self.policy_slots.get(policy_slot).filter(|policy_slot| policy_slot.is_taken());
        policy_slot.inspect(|policy_slot| policy_slot.checks.store(checks as u32, Relaxed)).is_some()
    }

    /// The policy in a policy slot has panicked outside of a call, such as on its way in or out.
    pub fn has_faulted(&self, policy_slot: usize) {
        self.take_out_of(&self.policy_slots[policy_slot], None);
    }

    /// Takes the policy in a policy slot out: it is not called any more, and its tasks are attached to none. The first reason is
    /// kept. The host is told, and introduces the tasks; if no policy is left, every later event says so.
    #[cold]
    pub(crate) fn take_out_of(&self, policy_slot: &PolicySlot<P>, fault: Option<Fault>) {
        if Attachment(policy_slot.attachment.swap(Attachment::NOWHERE.0, Release)) == Attachment::NOWHERE {
            // On another CPU it has faulted too.
            return self.host.policy_faulted(policy_slot.index as u32);
        }
        if let Some(fault) = fault {
            *policy_slot.fault.lock() = Some(fault);
        }
        // First the reason: a CPU that hears that no policy is left asks for it.
        self.host.policy_faulted(policy_slot.index as u32);
        // If two fault at once, on two CPUs, one at least sees that the other has.
        fence(SeqCst);
        self.find_default();
    }

    /// Makes sure that the default policy is one that can be called, and notes if there is none left.
    pub(crate) fn find_default(&self) {
        while !self.policy_slots[self.default_policy_slot()].is_taken() {
            let Some(policy_slot) = self.in_order().find(|policy_slot| policy_slot.is_taken()) else {
                return self.conditions.set_over();
            };
            self.default_policy_slot.store(policy_slot.index as u32, Relaxed);
            // It may have gone since it was found, while another CPU found another one: first said, then looked at again.
            fence(SeqCst);
        }
    }

    /// The policy in a policy slot is about to go: another one is the default, if there is one.
    pub(crate) fn find_another_default(&self, policy_slot: usize) {
        if self.default_policy_slot() != policy_slot {
            return;
        }
        if let Some(other) = self.in_order().find(|other| other.index != policy_slot && other.is_taken()) {
            self.default_policy_slot.store(other.index as u32, Relaxed);
        }
    }

    /// Why all policies were taken out, if they were: the reason of the first that has one.
    pub fn fault(&self) -> Option<Fault> {
        if !self.conditions.are_over() {
            return None;
        }
        self.in_order().find_map(|policy_slot| policy_slot.fault.lock().clone())
    }

    /// Takes all policies out: every later event ends with [`Status::Fault`](ekiden_host::abi::Status::Fault). The first reason is
    /// kept.
    #[cold]
    pub fn take_out(&self, fault: Fault) {
        for policy_slot in self.in_order() {
            let mut first = policy_slot.fault.lock();
            if first.is_none() {
                *first = Some(fault.clone());
            }
        }
        self.conditions.set_over();
    }

    /// Takes all policies out without touching memory that has to be allocated: for a host that cannot know in which state
    /// things are. The host keeps the reason.
    #[cold]
    pub fn silence(&self) {
        self.conditions.set_over();
    }
}
