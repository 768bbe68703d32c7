//! An order and a share that are published while a CPU looks for work, in every order that memory allows (loom): the steps of `reorder`,
//! `share` and `all_see` in `src/policy_slots.rs` and `src/shares.rs`, and of `pick_of_shared` in `src/turns.rs`. A grace period is the end of
//! the thread on which the event is handled.

use loom::{
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};

/// Which of the two policies is asked first, in one word.
const FIRST_IS_0: u32 = 0x10;
const FIRST_IS_1: u32 = 0x01;

struct Model {
    order: AtomicU32,
    /// Whether policy 1 may bring a task to this CPU.
    may_bring: AtomicU32,
    heard: [AtomicU32; 2],
    /// What each CPU had heard of each policy when it found nothing there, and whom it asks first.
    nothing: [[AtomicU32; 2]; 2],
    first: [AtomicU32; 2],
}

/// When what CPUs have found is forgotten.
#[derive(Clone, Copy, PartialEq)]
enum Forgotten {
    BeforeItIsPublished,
    AfterAGracePeriod,
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            order: AtomicU32::new(FIRST_IS_0),
            may_bring: AtomicU32::new(0),
            heard: [1, 1].map(AtomicU32::new),
            nothing: [[0, 0]; 2].map(|nothing| nothing.map(AtomicU32::new)),
            first: [0, 0].map(AtomicU32::new),
        })
    }

    /// A CPU looks for work. Policy 0 has none; policy 1 has a task, which it has to bring. In which order they were asked, and whether
    /// the task was found.
    fn pick(&self, cpu: usize) -> (Vec<usize>, bool) {
        let order = self.order.load(Acquire);
        assert!([FIRST_IS_0, FIRST_IS_1].contains(&order), "neither the old order nor the new one: {order:x}");
        let mut asked = Vec::new();
        for policy_slot in [order & 0xf, order >> 4].map(|policy_slot| policy_slot as usize) {
            let heard = self.heard[policy_slot].load(Acquire);
            if heard == self.nothing[cpu][policy_slot].load(Relaxed) {
                continue;
            }
            asked.push(policy_slot);
            if policy_slot == 1 && self.may_bring.load(Relaxed) != 0 {
                return (asked, true);
            }
            self.nothing[cpu][policy_slot].store(heard, Relaxed);
        }
        (asked, false)
    }

    /// A tick chooses whom the CPU asks first, by the order that it sees.
    fn tick(&self, cpu: usize) {
        let order = self.order.load(Acquire);
        self.first[cpu].store(order >> 4, Relaxed);
    }

    fn ask_anew(&self) {
        self.heard.iter().for_each(|heard| _ = heard.fetch_add(1, Release));
        self.first.iter().for_each(|first| first.store(0, Relaxed));
    }

    fn publish(&self) {
        self.may_bring.store(1, Relaxed);
        self.order.store(FIRST_IS_1, Release);
    }
}

/// By CPU, whether it has a tick; if not it looks for work.
fn change_while_cpus_look(forgotten: Forgotten, cpus: &'static [bool]) {
    loom::model(move || {
        let model = Model::new();
        let events: Vec<_> = (0..cpus.len())
            .map(|cpu| {
                let model = model.clone();
                thread::spawn(move || if cpus[cpu] { model.tick(cpu) } else { _ = model.pick(cpu) })
            })
            .collect();
        if forgotten == Forgotten::BeforeItIsPublished {
            model.ask_anew();
        }
        model.publish();
        events.into_iter().for_each(|event| event.join().unwrap());
        if forgotten == Forgotten::AfterAGracePeriod {
            model.ask_anew();
        }
        for cpu in 0..cpus.len() {
            assert_eq!(model.first[cpu].load(Relaxed), 0, "a turn by the old order has not ended");
            // The CPU is kicked.
            let (asked, is_found) = model.pick(cpu);
            assert_eq!((asked.first(), is_found), (Some(&1), true), "the CPU believes what it found before");
        }
    });
}

#[test]
fn a_cpu_that_looks_meanwhile_looks_again() {
    change_while_cpus_look(Forgotten::AfterAGracePeriod, &[false]);
}

#[test]
fn a_turn_that_begins_meanwhile_ends() {
    change_while_cpus_look(Forgotten::AfterAGracePeriod, &[true]);
}

#[test]
fn of_two_cpus_each_looks_again_and_ends_its_turn() {
    change_while_cpus_look(Forgotten::AfterAGracePeriod, &[false, false]);
    change_while_cpus_look(Forgotten::AfterAGracePeriod, &[false, true]);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "the CPU believes what it found before")]
fn what_is_forgotten_too_early_is_found_again() {
    change_while_cpus_look(Forgotten::BeforeItIsPublished, &[false]);
}

#[test]
#[should_panic(expected = "a turn by the old order has not ended")]
fn a_turn_that_ends_too_early_begins_again() {
    change_while_cpus_look(Forgotten::BeforeItIsPublished, &[true]);
}
