//! Several policies at once: each has a seat, in the order in which they are asked; each task is at home with one of them
//! (papers/001, section III).

use core::mem::{self, MaybeUninit};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use ekiden::{Calls, CpuMask, TaskId};
use ekiden_host::Policy;
use ekiden_host::abi::{Event, Kicks, Message, Outcome, Reply};
use spin::Once;

use crate::counters::Totals;
use crate::engine::{Engine, Handling};
use crate::fault::{Checks, Fault, Mistake, Surprise};
use crate::lock::Lock;
use crate::shares::Share;
use crate::state::Home;
use crate::table::How;

/// How many policies there can be at once.
pub const SEATS: usize = 8;

/// The place of one policy. Its size is a power of two, so that finding it takes two instructions.
#[repr(align(256))]
pub(crate) struct Seat<P> {
    pub(crate) index: usize,
    policy: Once<P>,
    calls: AtomicU64,
    /// What its policy declares for tasks, by its fingerprint.
    params_declared: AtomicU64,
    /// Tasks of any other home in this seat are strangers to the policy. It is `NOWHERE` while there is no policy.
    home: AtomicU64,
    /// That of the policy that was here last.
    last_home: AtomicU64,
    /// How many tasks are at home here.
    pub(crate) tasks: AtomicU32,
    /// Counts what can change the answer of the policy to a CPU that looks for work. Used only if there are several.
    pub(crate) heard: AtomicU32,
    pub(crate) mistakes: AtomicU32,
    /// How many of them were those of policies before this one.
    pub(crate) mistakes_before: AtomicU32,
    pub(crate) last_mistake: Lock<Option<Mistake>>,
    /// A number of [`Checks`].
    checks: AtomicU32,
    pub(crate) last_surprise: Lock<Option<Surprise>>,
    fault: Lock<Option<Fault>>,
}

impl<P: Policy> Seat<P> {
    pub(crate) fn free(index: usize) -> Self {
        Self {
            index,
            policy: Once::new(),
            calls: AtomicU64::new(Calls::NONE.0),
            params_declared: AtomicU64::new(0),
            home: AtomicU64::new(Home::NOWHERE.0),
            last_home: AtomicU64::new(Home::in_seat(index).0),
            tasks: AtomicU32::new(0),
            heard: AtomicU32::new(1),
            mistakes: AtomicU32::new(0),
            mistakes_before: AtomicU32::new(0),
            last_mistake: Lock::new(None),
            checks: AtomicU32::new(Checks::default() as u32),
            last_surprise: Lock::new(None),
            fault: Lock::new(None),
        }
    }

    /// Calls the policy. Without one, the reply is the default.
    #[inline]
    pub(crate) fn deliver<'a, const LONE: bool>(
        &self,
        message: &Message,
        payload: &[u8],
        reply: &'a mut MaybeUninit<Reply>,
    ) -> &'a mut Reply {
        match self.policy.get() {
            Some(policy) => policy.deliver_to::<LONE>(message, payload, reply),
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
    pub(crate) fn home(&self) -> Home {
        Home(self.home.load(Acquire))
    }

    /// Whether a policy is here that can be called.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.home() != Home::NOWHERE
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

    /// It is called from here on. The seat is empty.
    fn put(&self, policy: P) {
        self.calls.store(policy.calls().0, Relaxed);
        self.params_declared.store(policy.params_declared(), Relaxed);
        self.policy.call_once(|| policy);
    }

    /// No policy is called here any more.
    pub(crate) fn empty(&mut self) -> Option<P> {
        *self.home.get_mut() = Home::NOWHERE.0;
        *self.calls.get_mut() = Calls::NONE.0;
        self.take_out()
    }

    fn take_out(&mut self) -> Option<P> {
        mem::take(&mut self.policy).try_into_inner()
    }

    /// A policy comes that knows none of the tasks. A CPU that sees the new home sees all of it.
    pub(crate) fn take(&self, policy: P) {
        self.put(policy);
        self.forget_mistakes();
        *self.fault.lock() = None;
        self.checks.store(Checks::default() as u32, Relaxed);
        *self.last_surprise.lock() = None;
        self.move_home();
        self.has_heard();
    }

    fn forget_mistakes(&self) {
        self.mistakes_before.store(self.mistakes.load(Relaxed), Relaxed);
    }

    /// All tasks are strangers.
    fn move_home(&self) {
        let home = Home(self.last_home.load(Relaxed)).next();
        self.last_home.store(home.0, Relaxed);
        self.home.store(home.0, Release);
    }
}

/// A policy as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatView {
    /// Its seat.
    pub seat: usize,
    /// Whether it is called; if not, it was taken out.
    pub is_alive: bool,
    /// Whether tasks for which no policy was chosen have it.
    pub is_default: bool,
    /// How many tasks have it.
    pub tasks: u32,
    /// How many mistakes of it the engine has put right.
    pub mistakes: u32,
    /// The newest of them.
    pub last_mistake: Option<Mistake>,
    /// What becomes of it when a task of its changes its state in an unexpected way, and the newest such change.
    pub checks: Checks,
    /// See there.
    pub last_surprise: Option<Surprise>,
    /// Why the engine has taken it out, if it did.
    pub fault: Option<Fault>,
    /// Sums of what the CPUs counted.
    pub totals: Totals,
    /// Its share of the machine, and the CPUs that are its; none if it has no set.
    pub share: Share,
    /// See there.
    pub cpus: CpuMask,
}

/// Why a task does not get the policy that somebody wants for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotChosen {
    /// There is no such task.
    NoTask,
    /// No policy has this seat.
    NoPolicy,
    /// A process with CAP_SYS_NICE has chosen for it.
    ByRoot,
}

impl<P: Policy> Engine<P> {
    /// The policies, in the order in which they are asked.
    pub fn seats(&self) -> impl Iterator<Item = SeatView> {
        self.in_order().map(|seat| {
            let mut totals = Totals::default();
            self.cpus.iter().for_each(|cpu| cpu.counters[seat.index].add_to(&mut totals));
            let (share, cpus) = self.share_of(seat.index);
            SeatView {
                seat: seat.index,
                is_alive: seat.is_taken(),
                is_default: self.default_seat() == seat.index,
                tasks: seat.tasks.load(Relaxed),
                mistakes: seat.mistakes.load(Relaxed),
                last_mistake: *seat.last_mistake.lock(),
                checks: seat.checks(),
                last_surprise: *seat.last_surprise.lock(),
                fault: seat.fault.lock().clone(),
                totals,
                share,
                cpus,
            }
        })
    }

    /// The seats that are taken, in the order in which their policies are asked.
    pub fn order(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        self.order.get().seats()
    }

    /// The same, as seats.
    #[inline]
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Seat<P>> {
        self.order.get().seats().map(|seat| &self.seats[seat % SEATS])
    }

    /// Whether there is a policy in this seat that is called.
    pub fn is_alive(&self, seat: usize) -> bool {
        self.seats.get(seat).is_some_and(Seat::is_taken)
    }

    /// Whether there is no policy left.
    pub fn is_over(&self) -> bool {
        self.faulted.load(Acquire)
    }

    /// The seat of the policy that gets the tasks for which no policy was chosen.
    pub fn default_seat(&self) -> usize {
        self.default_seat.load(Relaxed) as usize % SEATS
    }

    /// Chooses the policy of a task, and, if it `inherits`, of the children that it has from now on; `None` for the default
    /// one. Takes effect when the task next waits for a CPU. What was chosen `by_root`, who may change the priority of any
    /// task, only root changes.
    ///
    /// # Errors
    /// If there is no such task or policy, or root has chosen.
    pub fn choose(&self, task: TaskId, seat: Option<usize>, inherits: bool, by_root: bool) -> Result<(), NotChosen> {
        let slot = self.tasks.get(task).ok_or(NotChosen::NoTask)?;
        let may = |how: How| by_root || !how.has(How::BY_ROOT);
        match seat {
            Some(seat) if !self.seats.get(seat).is_some_and(Seat::is_taken) => Err(NotChosen::NoPolicy),
            Some(seat) => {
                let how = How::CHOSEN.with(How::INHERITED, inherits).with(How::BY_ROOT, by_root);
                slot.choose(task, seat, how, may)
            }
            None => slot.choose(task, self.default_seat(), How::NOT, may),
        }
    }

    /// Swaps the policy in a seat for its successor. No event may be under way; `&mut self` says so.
    pub fn replace_policy(&mut self, seat: usize, swap: impl FnOnce(P) -> P) {
        self.begins_pace(seat);
        let seat = &mut self.seats[seat];
        if let Some(new) = seat.take_out().map(swap) {
            seat.put(new);
        }
        self.note_listeners();
    }

    /// Makes all tasks of a seat strangers to a policy that has just [replaced](Self::replace_policy) another one, and took
    /// over no state from it. The policy hears of a task when the next event is about it, or when [`introduce`](Self::introduce)
    /// comes to it: one that waits is new to it then, any other when it comes to wait for a CPU. So every task has a policy
    /// all the time.
    ///
    /// All tasks have to be introduced before the next policy takes over. `outcome` comes in zeroed, and asks for what the
    /// policy wants at once. No event may be under way; `&mut self` says so.
    ///
    /// Cost: one call for each idle CPU, if the policy asks for that; none for tasks.
    pub fn start_over(&mut self, seat: usize, outcome: &mut Outcome) {
        let index = seat;
        let seat = &mut self.seats[seat];
        if *seat.home.get_mut() != Home::NOWHERE.0 {
            seat.move_home();
        }
        seat.forget_mistakes();
        self.forget_told(index);
        self.tell_of_idle_cpus(index, outcome);
    }

    /// Tells policies of tasks that are strangers to theirs, in at most `most` slots from `first` on; events may come
    /// meanwhile. Returns where to go on, or `None` when they have heard of all: every CPU looks for work then, as what runs
    /// was chosen by somebody else.
    ///
    /// Cost: one look for each slot that was ever in use, and one call for each task that waits.
    pub fn introduce(&self, first: u32, most: u32, outcome: &mut Outcome) -> Option<u32> {
        let event = Event::default();
        let handling = &mut Handling::<false> { event: &event, outcome };
        let mut end = first.saturating_add(most);
        if first == 0 {
            // Whoever is alone now is told of everything at once from here on.
            self.tell_all_missed(handling);
        }
        for view in self.tasks.between(first, end) {
            let Some(slot) = self.tasks.get(view.id) else { continue };
            if !self.seats[slot.choice()].is_taken() {
                // Who comes to that seat later was not meant.
                slot.choose_for_all(view.id, self.default_seat());
            }
            if self.is_home::<false>(view.state) && !self.is_to_leave(slot, view.state) {
                continue;
            }
            self.settle(handling, view.id, slot);
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

    /// Chooses what becomes of the policy in a seat when a task of its changes its state in an unexpected way. False if
    /// there is none.
    pub fn check(&self, seat: usize, checks: Checks) -> bool {
        let seat = self.seats.get(seat).filter(|seat| seat.is_taken());
        seat.inspect(|seat| seat.checks.store(checks as u32, Relaxed)).is_some()
    }

    /// The policy in a seat has panicked outside of a call, such as on its way in or out.
    pub fn has_fallen(&self, seat: usize) {
        self.take_out_of(&self.seats[seat], None);
    }

    /// Takes the policy in a seat out: it is not called any more, and its tasks are strangers to others. The first reason is
    /// kept. The host is told, and introduces the tasks; if no policy is left, every later event says so.
    #[cold]
    pub(crate) fn take_out_of(&self, seat: &Seat<P>, fault: Option<Fault>) {
        if Home(seat.home.swap(Home::NOWHERE.0, Release)) == Home::NOWHERE {
            // On another CPU it has fallen too.
            return self.host.policy_fell(seat.index as u32);
        }
        if let Some(fault) = fault {
            *seat.fault.lock() = Some(fault);
        }
        // First the reason: whoever hears that no policy is left asks for it.
        self.host.policy_fell(seat.index as u32);
        // Of two that fall at once, on two CPUs, one at least sees that the other has.
        fence(SeqCst);
        self.find_default();
    }

    /// Makes sure that the default policy is one that can be called, and notes if there is none left.
    pub(crate) fn find_default(&self) {
        if self.seats[self.default_seat()].is_taken() {
            return;
        }
        match self.in_order().find(|seat| seat.is_taken()) {
            Some(seat) => self.default_seat.store(seat.index as u32, Relaxed),
            None => self.faulted.store(true, Release),
        }
    }

    /// Why all policies were taken out, if they were: the reason of the first that has one.
    pub fn fault(&self) -> Option<Fault> {
        if !self.faulted.load(Acquire) {
            return None;
        }
        self.in_order().find_map(|seat| seat.fault.lock().clone())
    }

    /// Takes all policies out: every later event ends with [`Status::Fault`](ekiden_host::abi::Status::Fault). The first reason is
    /// kept.
    #[cold]
    pub fn take_out(&self, fault: Fault) {
        for seat in self.in_order() {
            let mut first = seat.fault.lock();
            if first.is_none() {
                *first = Some(fault.clone());
            }
        }
        self.faulted.store(true, Release);
    }

    /// Takes all policies out without touching memory that has to be allocated: for a host that cannot know in which state
    /// things are. The host keeps the reason.
    #[cold]
    pub fn silence(&self) {
        self.faulted.store(true, Release);
    }
}
