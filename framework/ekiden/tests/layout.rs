//! Fingerprints: the same for the same layout, another for whatever could be taken for something else.

use ekiden::{Fingerprint, Layout, prelude::*};

/// Makes types of the same name, each in a module of its own.
macro_rules! versions {
    ($($module:ident: $item:item)*) => {
        $(#[allow(unreachable_pub, reason = "the derive looks at it from outside as any code would")]
        mod $module {
            #[allow(unused_imports)]
            use ekiden::prelude::*;
            #[derive(Layout)]
            #[allow(dead_code)]
            $item
        })*
        const ALL: &[(&str, Fingerprint)] = &[$((stringify!($module), $module::Account::FINGERPRINT)),*];
    };
}

versions! {
    first: pub struct Account { charged_ns: u64, vruntime: u64, cpu: u32 }
    same: pub struct Account { charged_ns: u64, vruntime: u64, cpu: u32 }
    renamed: pub struct Account { charged_ns: u64, vruntime_ns: u64, cpu: u32 }
    retyped: pub struct Account { charged_ns: u64, vruntime: i64, cpu: u32 }
    swapped: pub struct Account { vruntime: u64, charged_ns: u64, cpu: u32 }
    longer: pub struct Account { charged_ns: u64, vruntime: u64, cpu: u32, node: u32 }
    aligned: #[repr(align(64))] pub struct Account { charged_ns: u64, vruntime: u64, cpu: u32 }
    nested: pub struct Account { charged_ns: Option<u64>, vruntime: u64, cpu: u32 }
    tuple: pub struct Account(u64, u64, u32);
    either: pub enum Account { Runs(u64), Waits { since_ns: u64 } }
    otherwise: pub enum Account { Waits { since_ns: u64 }, Runs(u64) }
    with_more: pub enum Account { Runs(u64), Waits { since_ns: u64 }, Sleeps }
}

#[test]
fn only_the_same_layout_has_the_same_fingerprint() {
    for (index, (name, fingerprint)) in ALL.iter().enumerate() {
        for (other_name, other) in &ALL[index + 1..] {
            let same = (*name, *other_name) == ("first", "same");
            assert_eq!(fingerprint == other, same, "{name}, {other_name}");
        }
    }
}

#[test]
fn parameters_count_but_not_whose_tokens_they_are() {
    struct Other;
    assert_ne!(PerCpu::<u32>::FINGERPRINT, PerCpu::<i32>::FINGERPRINT);
    assert_ne!(PerCpu::<u32>::FINGERPRINT, PerTask::<u32>::FINGERPRINT);
    assert_ne!(TreeQueue::<Other, u32>::FINGERPRINT, TreeQueue::<Other, u64>::FINGERPRINT);
    assert_eq!(FifoQueue::<Other>::FINGERPRINT, FifoQueue::<()>::FINGERPRINT);
    assert_ne!(<[u8; 2]>::FINGERPRINT, <[u8; 3]>::FINGERPRINT);
}

macro_rules! policy {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        struct $name {
            queue: SpinLock<FifoQueue<Self>>,
        }

        #[policy]
        impl Scheduler for $name {
            fn new(_: &Env) -> Self {
                Self { queue: SpinLock::default() }
            }

            fn enqueue(&self, _: &Cx, _: &Task, token: Schedulable<Self>) {
                self.queue.lock().push_back(token);
            }

            fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> {
                self.queue.lock().pop_front()
            }
        }
    };
}

policy!(
    #[derive(Layout)]
    Known
);
policy!(Unknown);

#[test]
fn a_policy_has_the_fingerprint_of_its_state_if_that_has_one() {
    assert_eq!(Known::LAYOUT, Some(Known::FINGERPRINT));
    assert_eq!(Unknown::LAYOUT, None);
}
