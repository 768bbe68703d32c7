//! The engine's own lock. Its holder does nothing but go on to the end, so a wait for it ends with that, as the host has
//! calls wait, and for no longer than the engine lives. So none is held while a policy is called.

use ekiden_host::wait_for;
use spin::mutex::SpinMutex;
#[cfg(not(test))]
use spin::mutex::SpinMutexGuard as Guard;
#[cfg(test)]
use tests::Guard;

#[derive(Debug, Default)]
pub(crate) struct Lock<T>(SpinMutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let guard = match self.0.try_lock() {
            Some(guard) => guard,
            None => wait_for(|| self.0.try_lock()),
        };
        #[cfg(test)]
        let guard = tests::counted(guard);
        guard
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::{boxed::Box, collections::VecDeque, sync::Arc, vec::Vec};
    use core::any::Any;
    use core::cell::Cell;
    use core::ops::{Deref, DerefMut};
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::sync::Mutex;
    use std::thread_local;

    use ekiden::{Call, Calls, CpuId, CpuMask, TaskId};
    use ekiden_host::abi::{Event, EventKind, Kicks, Message, Outcome, RawParams, RawToken, Reply};
    use ekiden_host::{Host, Policy};
    use spin::mutex::SpinMutexGuard;
    use zerocopy::IntoBytes;

    use crate::{Engine, EngineHost, IdleCpus, Interrupted};

    const CPUS: u32 = 2;
    const TASKS: u32 = 8;
    const MS: u64 = 1_000_000;
    const ROOT: u64 = 1;
    const LIMITED: u64 = 2;

    thread_local! {
        /// How many locks of engines this thread holds, and how many it has had.
        static HELD: Cell<u32> = const { Cell::new(0) };
        static TAKEN: Cell<u32> = const { Cell::new(0) };
    }

    pub(crate) struct Guard<'a, T>(SpinMutexGuard<'a, T>);

    pub(super) fn counted<T>(guard: SpinMutexGuard<'_, T>) -> Guard<'_, T> {
        HELD.set(HELD.get() + 1);
        TAKEN.set(TAKEN.get() + 1);
        Guard(guard)
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }

    /// A machine of which only the clock advances.
    struct Machine(AtomicU64);

    impl Host for Machine {
        fn now_ns(&self) -> u64 {
            self.0.load(Relaxed)
        }

        fn may_run(&self, _: TaskId, _: CpuId) -> bool {
            true
        }

        fn allowed_cpus(&self, _: TaskId, cpus: &mut CpuMask) {
            *cpus = CpuMask::first_n(CPUS);
        }

        fn idle_cpus(&self, _: &mut CpuMask) {}
    }

    impl EngineHost for Machine {
        fn interrupted(&self, _: TaskId) -> Interrupted {
            Interrupted::InUser
        }

        fn is_at_user(&self, _: TaskId) -> bool {
            true
        }
    }

    /// Pseudo-random numbers, which repeat in each run so that a failure does.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % end
        }
    }

    /// How often there was each call.
    type Heard = Arc<Mutex<[u32; Call::ALL.len()]>>;

    /// First come, first served on each CPU; but it loses tokens, answers with those of others, and wants this and that.
    struct Careless {
        state: Mutex<(VecDeque<RawToken>, Numbers)>,
        heard: Heard,
    }

    impl Policy for Careless {
        fn calls(&self) -> Calls {
            Calls::ALL
        }

        fn params_declared(&self) -> u64 {
            1
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any> {
            self
        }

        fn deliver(&self, message: &Message, _: &[u8]) -> Reply {
            let call = Call::from_number(message.call).unwrap();
            assert_eq!(HELD.get(), 0, "the engine calls {} with a lock of its own", call.name());
            self.heard.lock().unwrap()[call as usize] += 1;
            let (queue, numbers) = &mut *self.state.lock().unwrap();
            let mut reply = Reply { cpu: message.cpu, ..Reply::default() };
            let token = message.token();
            if !token.is_none() {
                queue.retain(|other| other.task != token.task);
                match numbers.below(64) {
                    0 => reply.dropped = token,
                    _ => queue.push_back(token),
                }
            }
            let is_pick = call == Call::PickNextTask;
            let at = queue.iter().position(|token| !is_pick || token.cpu == message.cpu || numbers.below(64) == 0);
            match call {
                Call::PickNextTask => {
                    reply.token = at.and_then(|at| queue.remove(at)).unwrap_or(RawToken::NONE);
                    // Most often one that is not there.
                    reply.task = TaskId { slot: numbers.below(u64::from(TASKS)) as u32, generation: 1 };
                }
                Call::Balance => reply.task = at.map_or(TaskId::NONE, |at| queue[at].task),
                _ => {}
            }
            match numbers.below(32) {
                0 => reply.timer_ns = MS,
                1 => reply.kicks = Kicks::ALL,
                2 => reply.kicks.add(numbers.below(u64::from(CPUS) * 2) as u32),
                _ => {}
            }
            if numbers.below(2000) == 0 { Reply::faulted() } else { reply }
        }
    }

    /// Calls come from everywhere, in every order, to two policies at a time that make contract violations.
    #[test]
    fn no_lock_of_the_engine_is_held_while_a_policy_is_called() {
        let heard = Heard::default();
        let numbers = &mut Numbers(0x9e37_79b9_7f4a_7c15);
        let mut seed = 0;
        let mut policy = || -> Box<dyn Policy> {
            seed += 1;
            Box::new(Careless { state: Mutex::new((VecDeque::new(), Numbers(seed))), heard: heard.clone() })
        };
        let machine = Arc::new(Machine(AtomicU64::new(MS)));
        let idle = Arc::new(IdleCpus::new(CPUS));
        let mut engine: Engine = Engine::new(policy(), machine.clone(), idle, CPUS, TASKS);
        assert!(engine.add(policy(), false, &mut Outcome::default()).is_ok());
        for step in 0..40_000 {
            machine.0.fetch_add(numbers.below(MS), Relaxed);
            let tasks: Vec<TaskId> = engine.tasks().iter().map(|view| view.id).collect();
            // Tasks come, wait and run more often than anything else.
            let often =
                [EventKind::TaskInit, EventKind::TaskEnable, EventKind::Enqueue, EventKind::Pick, EventKind::Pick];
            let kind = match numbers.below(12) as usize {
                at if at < often.len() => often[at] as u32,
                _ => numbers.below(EventKind::TaskParams as u64 + 1) as u32,
            };
            let args = match kind {
                _ if kind == EventKind::GroupCreate as u32 && numbers.below(4) == 0 => [ROOT, 0],
                _ if kind >= EventKind::TaskMove as u32 => [ROOT + numbers.below(3), ROOT + numbers.below(2)],
                _ => [7, numbers.below(CPUS.into())],
            };
            let mut event = Event {
                kind,
                cpu: numbers.below(CPUS.into()) as u32,
                task: tasks.get(numbers.below(TASKS.into()) as usize).copied().unwrap_or(TaskId::NONE),
                flags: numbers.below(4),
                runtime_ns: machine.0.load(Relaxed),
                args,
            };
            if kind == EventKind::GroupLimit as u32 {
                (event.args, event.flags, event.runtime_ns) = ([LIMITED, MS], 10 * MS, 0);
            }
            let params = RawParams { declared: 1, ..RawParams::default() };
            let name = 7_u64.to_ne_bytes();
            let payload = if kind == EventKind::TaskParams as u32 { params.as_bytes() } else { &name };
            engine.deliver(&event, payload, &mut Outcome::default());
            let policy_slot = numbers.below(2) as usize;
            match step % 64 {
                0 => _ = engine.introduce(0, TASKS, &mut Outcome::default()),
                1 if !engine.is_alive(policy_slot) => {
                    engine.remove(policy_slot);
                    _ = engine.add(policy(), numbers.below(2) == 0, &mut Outcome::default());
                }
                2 => _ = engine.choose(event.task, Some(policy_slot), true, true),
                _ => {}
            }
            assert_eq!(HELD.get(), 0);
        }
        let missed: Vec<_> = Call::ALL.iter().filter(|call| heard.lock().unwrap()[**call as usize] == 0).collect();
        // The host hands states over, without the engine.
        assert_eq!(missed, [&Call::ReregisterPrep, &Call::ReregisterInit]);
        assert!(TAKEN.get() > 1_000, "only {} locks were taken", TAKEN.get());
    }
}
