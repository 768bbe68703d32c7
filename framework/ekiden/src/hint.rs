//! Hints: what applications tell a policy, and what it tells them (papers/000, section 3.3).

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;

use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// Names one hint queue of an application, unique while the policy runs.
///
/// ```
/// use ekiden::{Call, ProcessId, QueueId, prelude::*};
///
/// /// Counts the queues that are open, and kicks the CPU of that number to show it.
/// struct Counting(Shared<u32>);
///
/// #[policy]
/// impl Scheduler for Counting {
/// #     fn new(_: &Env) -> Self { Self(Shared::new(0)) }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
///     fn register_queue(&self, cx: &Cx, _: QueueId, _: ProcessId) {
///         cx.resched(self.0.fetch_add(1) + 1);
///     }
///
///     fn unregister_queue(&self, cx: &Cx, _: QueueId) {
///         cx.resched(self.0.fetch_sub(1) - 1);
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Counting>::flat(4);
/// assert!(machine.call(Call::RegisterQueue, 0, 0).kicks.contains(1));
/// assert!(machine.call(Call::UnregisterQueue, 0, 0).kicks.contains(0));
/// ```
pub type QueueId = u32;

/// Names a process by its PID, while it lives: the number is another one's later.
///
/// ```
/// use ekiden::{ProcessId, prelude::*};
///
/// /// Keeps the threads of process 103 on CPU 1.
/// struct Together(ProcessId);
///
/// #[policy]
/// impl Scheduler for Together {
/// #     fn new(_: &Env) -> Self { Self(103) }
/// #     fn enqueue(&self, cx: &Cx, task: &Task, _: Schedulable<Self>) { cx.resched(self.select_task_rq(cx, task, 0, 0, Default::default())) }
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
///     fn select_task_rq(&self, cx: &Cx, task: &Task, _: CpuId, suggested: CpuId, _: WakeFlags) -> CpuId {
///         if cx.process(task.id) == Some(self.0) { 1 } else { suggested }
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Together>::flat(2);
/// assert_eq!((machine.wake(3, 0), machine.wake(4, 0)), (vec![1], vec![0]));
/// ```
pub type ProcessId = u32;

/// A policy does not take a hint.
///
/// ```
/// use ekiden::{Call, HintRefused, prelude::*};
///
/// /// A program asks for a CPU to be kicked; there are two.
/// struct Asked;
///
/// #[policy]
/// impl Scheduler for Asked {
///     type Hint = u32;
///
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
///     fn parse_hint(&self, cx: &Cx, _: Option<&Task>, cpu: u32) -> Result<(), HintRefused> {
///         if cpu >= cx.topology().nr_cpus() {
///             return Err(HintRefused);
///         }
///         cx.resched(cpu);
///         Ok(())
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Asked>::flat(2);
/// assert!(machine.call_with(Call::ParseHint, 3, &1_u32.to_ne_bytes()).kicks.contains(1));
/// assert_eq!(machine.call_with(Call::ParseHint, 3, &2_u32.to_ne_bytes()).cpu, ekiden::host::abi::NO_CPU);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HintRefused;

/// Why a program is not told: see [`Cx::notify`](crate::Cx::notify). The numbers are those on the wire.
///
/// ```
/// use ekiden::{Call, NotTold, prelude::*};
///
/// /// Tells whoever has opened queue 5 which CPU ticks.
/// struct Talking;
///
/// #[policy]
/// impl Scheduler for Talking {
///     type Notice = u32;
///
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
///     fn task_tick(&self, cx: &Cx, _: &Task) {
///         assert_eq!(cx.notify::<Self>(5, &cx.cpu()), Ok(()));
///         assert_eq!(cx.notify::<Self>(6, &cx.cpu()), Err(NotTold::Closed));
///     }
/// }
///
/// ekiden_example_host::Machine::<Talking>::flat(2).call(Call::TaskTick, 3, 1);
/// assert_eq!(NotTold::from_number(1).to_string(), "the program has not read what it was told before");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTold {
    /// It has not read enough of what it was told before. Counted in its queue.
    Full = 1,
    /// There is no such queue, or it has no room for notices of this type.
    Closed = 2,
}

impl NotTold {
    /// The reason with this number; an unknown one reads as [`NotTold::Closed`].
    pub const fn from_number(number: u32) -> Self {
        if number == Self::Full as u32 { Self::Full } else { Self::Closed }
    }
}

impl fmt::Display for NotTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the program has not read what it was told before",
            Self::Closed => "the queue is closed",
        })
    }
}

/// Hints that waited in a queue, oldest first. Bytes that are no value of `H` are passed over and counted.
///
/// ```
/// use ekiden::{Call, Hints, QueueId, prelude::*};
///
/// /// Programs name CPUs that should look for work.
/// struct Asked;
///
/// #[policy]
/// impl Scheduler for Asked {
///     type Hint = u32;
///
/// #     fn new(_: &Env) -> Self { Self }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
///     fn enter_queue(&self, cx: &Cx, _: QueueId, mut hints: Hints<u32>) {
///         // The oldest first. What is left after the call is gone.
///         while let Some(cpu) = hints.pop() {
///             cx.resched(cpu);
///         }
///     }
/// }
///
/// let mut machine = ekiden_example_host::Machine::<Asked>::flat(4);
/// let bytes = [2_u32, 3].map(u32::to_ne_bytes).concat();
/// assert!(machine.call_with(Call::EnterQueue, 0, &bytes).kicks.iter().eq([2, 3]));
/// ```
#[derive(Debug)]
pub struct Hints<'a, H> {
    bytes: &'a [u8],
    refused: &'a Cell<u32>,
    hint: PhantomData<H>,
}

impl<'a, H: TryFromBytes + KnownLayout + Immutable> Hints<'a, H> {
    pub(crate) fn new(bytes: &'a [u8], refused: &'a Cell<u32>) -> Self {
        Self { bytes, refused, hint: PhantomData }
    }

    /// Takes the oldest hint; the same as `next`.
    pub fn pop(&mut self) -> Option<H> {
        let size = size_of::<H>();
        // A policy without hints has `()` here, and would otherwise see infinitely many of them.
        if size == 0 {
            return None;
        }
        while self.bytes.len() >= size {
            let (head, rest) = self.bytes.split_at(size);
            self.bytes = rest;
            if let Ok(hint) = H::try_read_from_bytes(head) {
                return Some(hint);
            }
            self.refused.set(self.refused.get().saturating_add(1));
        }
        None
    }
}

impl<H: TryFromBytes + KnownLayout + Immutable> Iterator for Hints<'_, H> {
    type Item = H;

    fn next(&mut self) -> Option<H> {
        self.pop()
    }
}
