//! What `#[policy]` fills in, and what it leaves alone.

use ekiden::{Call, Calls, HintRefused, Hints, ProcessId, QueueId, prelude::*};

/// The calls that every policy implements.
const ALWAYS: [Call; 7] = [
    Call::PickNextTask,
    Call::PntErr,
    Call::TaskNew,
    Call::TaskWakeup,
    Call::TaskPreempt,
    Call::TaskYield,
    Call::MigrateTaskRq,
];

/// The calls of [`ALWAYS`], and `more`.
fn always_and(more: &[Call]) -> Calls {
    ALWAYS.iter().chain(more).fold(Calls::NONE, |calls, call| calls.with(*call))
}

/// A policy that implements what is required, and the methods given here. It may have implementations of other traits besides.
macro_rules! policy {
    ($name:ident { $($more:item)* }) => { policy!($name() { $($more)* }); };
    ($name:ident($($besides:ident),*) { $($more:item)* }) => {
        struct $name;

        #[policy($($besides),*)]
        impl Scheduler for $name {
            fn new(_: &Env) -> Self {
                Self
            }

            fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

            fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
                None
            }

            $($more)*
        }
    };
}

policy!(ShortestJob {});

fn env() -> Env {
    Env::new(Topology::flat(1), 1, &[], "").unwrap()
}

#[test]
fn the_smallest_policy_takes_what_enqueue_stands_for() {
    assert_eq!(ShortestJob::CALLS, always_and(&[]));
}

#[test]
fn the_name_is_that_of_the_type() {
    assert_eq!(ShortestJob::NAME, "shortest-job");
}

#[test]
fn the_hint_is_nothing() {
    let nothing: <ShortestJob as HintQueues>::Hint = ();
    assert_eq!(size_of_val(&nothing), 0);
}

#[test]
fn without_settings_and_another_layout_there_is_nothing() {
    assert_eq!(ShortestJob::TASK_PARAMS.len(), 0);
    assert!(ShortestJob.restore(&[]).is_err());
}

#[test]
fn the_whole_policy_is_handed_over() {
    struct Counter(u32);

    #[policy]
    impl Scheduler for Counter {
        fn new(_: &Env) -> Self {
            Self(0)
        }

        fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

        fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
            None
        }
    }

    let state: Counter = Counter(7).reregister_prep();
    assert_eq!(Counter::reregister_init(&env(), state).0, 7);
}

#[test]
fn each_call_counts_if_it_is_implemented() {
    policy!(Ticking {
        fn task_tick(&self, _: &Cx<'_>, _: &Task) {}

        fn balance(&self, _: &Cx<'_>, _: CpuId) -> Option<TaskId> {
            None
        }
    });
    assert_eq!(Ticking::CALLS, always_and(&[Call::TaskTick, Call::Balance]));
}

#[test]
fn a_call_that_counts_anyway_may_be_implemented() {
    policy!(Waking {
        fn task_wakeup(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}
    });
    assert_eq!(Waking::CALLS, always_and(&[]));
}

#[test]
fn parsing_hints_brings_the_queue_along() {
    policy!(Told(HintQueues) {});
    #[policy]
    impl HintQueues for Told {
        fn parse_hint(&self, _: &Cx<'_>, _: Option<&Task>, _: ()) -> Result<(), HintRefused> {
            Ok(())
        }
    }
    policy!(Queued(HintQueues) {});
    #[policy]
    impl HintQueues for Queued {
        fn enter_queue(&self, _: &Cx<'_>, _: QueueId, _: Hints<'_, ()>) {}
    }
    assert_eq!(Told::CALLS, always_and(&[Call::ParseHint, Call::EnterQueue]));
    assert_eq!(Queued::CALLS, always_and(&[Call::EnterQueue]));
}

#[test]
fn every_call_can_be_implemented() {
    policy!(Everything(HintQueues, TaskSettings) {
        fn pnt_err(&self, _: &Cx<'_>, _: CpuId, _: &Task, _: RefusalReason, _: Schedulable<Self>) {}
        fn task_new(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}
        fn task_wakeup(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}
        fn task_preempt(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}
        fn task_yield(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}
        fn task_blocked(&self, _: &Cx<'_>, _: &Task) {}
        fn task_dead(&self, _: &Cx<'_>, _: TaskId) {}
        fn task_departed(&self, _: &Cx<'_>, _: &Task) -> Option<Schedulable<Self>> { None }
        fn task_tick(&self, _: &Cx<'_>, _: &Task) {}
        fn task_affinity_changed(&self, _: &Cx<'_>, _: &Task) {}
        fn task_prio_changed(&self, _: &Cx<'_>, _: &Task) {}
        fn select_task_rq(&self, _: &Cx<'_>, _: &Task, _: CpuId, _: CpuId, _: WakeFlags) -> CpuId { 0 }
        fn migrate_task_rq(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) -> Option<Schedulable<Self>> { None }
        fn balance(&self, _: &Cx<'_>, _: CpuId) -> Option<TaskId> { None }
        fn balance_err(&self, _: &Cx<'_>, _: CpuId, _: TaskId, _: RefusalReason) {}
        fn reregister_prep(self) -> Self { self }
        fn reregister_init(_: &Env, state: Self) -> Self { state }
        fn enter_idle(&self, _: &Cx<'_>, _: CpuId) {}
        fn exit_idle(&self, _: &Cx<'_>, _: CpuId) {}
        fn cpu_online(&self, _: &Cx<'_>, _: CpuId) {}
        fn cpu_offline(&self, _: &Cx<'_>, _: CpuId) {}
        fn timer(&self, _: &Cx<'_>, _: CpuId) {}
    });
    #[policy]
    impl HintQueues for Everything {
        fn register_queue(&self, _: &Cx<'_>, _: QueueId, _: ProcessId) {}
        fn enter_queue(&self, _: &Cx<'_>, _: QueueId, _: Hints<'_, ()>) {}
        fn unregister_queue(&self, _: &Cx<'_>, _: QueueId) {}
        fn parse_hint(&self, _: &Cx<'_>, _: Option<&Task>, _: ()) -> Result<(), HintRefused> {
            Ok(())
        }
    }
    #[policy]
    impl TaskSettings for Everything {
        fn task_params(&self, _: &Cx<'_>, _: &Task, _: &TaskParams) {}
    }
    assert_eq!(Everything::CALLS, Call::ALL.into_iter().fold(Calls::NONE, Calls::with));
}

#[test]
fn what_is_said_stands() {
    policy!(Explicit(HintQueues, TaskSettings, SavedState) {
        const NAME: &'static str = "another-name";
        const CALLS: Calls = Calls::ALL;
        type State = u8;

        fn reregister_prep(self) -> u8 {
            9
        }

        fn reregister_init(_: &Env, state: u8) -> Self {
            assert_eq!(state, 9);
            Self
        }
    });
    #[policy]
    impl HintQueues for Explicit {
        type Hint = u64;
        const HINT_CALLS: Calls = Calls::NONE.with(Call::ParseHint);
    }
    impl TaskSettings for Explicit {
        const TASK_PARAMS: &'static [Param] = &[Param { name: "rank", help: "any", default: 0, min: 0, max: 9 }];
    }
    impl SavedState for Explicit {
        fn restore(&mut self, _: &[u8]) -> Result<(), &'static str> {
            Ok(())
        }
    }
    assert_eq!(Explicit::HINT_CALLS, Calls::NONE.with(Call::ParseHint));
    assert_eq!(Explicit::TASK_PARAMS.len(), 1);
    assert_eq!(Explicit.restore(&[]), Ok(()));
    assert_eq!(Explicit::NAME, "another-name");
    assert_eq!(Explicit::CALLS, Calls::ALL);
    let _hint: <Explicit as HintQueues>::Hint = 1_u64;
    Explicit::reregister_init(&env(), Explicit.reregister_prep());
}

#[test]
fn one_of_the_two_methods_of_an_upgrade_may_be_left_out() {
    policy!(Half {
        fn reregister_init(_: &Env, _: Self) -> Self {
            Self
        }
    });
    assert_eq!(Half::CALLS, always_and(&[Call::ReregisterInit]));
}

#[test]
fn a_method_that_is_not_compiled_does_not_count() {
    policy!(Conditional {
        #[cfg(any())]
        fn task_tick(&self, _: &Cx<'_>, _: &Task) {}

        #[cfg(all())]
        fn task_dead(&self, _: &Cx<'_>, _: TaskId) {}
    });
    assert_eq!(Conditional::CALLS, always_and(&[Call::TaskDead]));
}

#[test]
fn a_policy_may_be_generic() {
    struct Sharded<const N: usize, T>([T; N]);

    #[policy]
    impl<const N: usize, T: Default + Copy + Send + Sync + 'static> Scheduler for Sharded<N, T> {
        fn new(_: &Env) -> Self {
            Self([T::default(); N])
        }

        fn enqueue(&self, _: &Cx<'_>, _: &Task, _: Schedulable<Self>) {}

        fn pick_next_task(&self, _: &Cx<'_>, _: CpuId) -> Option<Schedulable<Self>> {
            None
        }
    }

    assert_eq!(Sharded::<4, u8>::NAME, "sharded");
    assert_eq!(Sharded::<4, u8>::new(&env()).0.len(), 4);
}
