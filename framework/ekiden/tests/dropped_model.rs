//! Tokens that are dropped on two or three CPUs at once, in calls of one policy or of two, in every order that memory allows (loom): the steps of
//! `note_dropped` and `take_dropped` in `src/token.rs`, with three places. Each token is reported once, as it was, to the policy whose it is.

use loom::{
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const FULL: u32 = 2;

/// The order in which a place is filled.
#[derive(Clone, Copy, PartialEq)]
enum Passed {
    Last,
    BeforeItsWords,
}

struct Place {
    state: AtomicU32,
    words: [AtomicU64; 2],
}

impl Place {
    fn take(&self, state: u32) -> bool {
        self.state.compare_exchange(state, TAKEN, Acquire, Relaxed).is_ok()
    }
}

struct Dropped {
    places: [Place; 3],
    len: AtomicUsize,
}

impl Dropped {
    fn new() -> Arc<Self> {
        let place = |_| Place { state: AtomicU32::new(FREE), words: [0, 0].map(AtomicU64::new) };
        Arc::new(Self { places: [0, 1, 2].map(place), len: AtomicUsize::new(0) })
    }

    fn note(&self, instance: u32, token: u64, passed: Passed) {
        let place = self.places.iter().find(|place| place.take(FREE)).expect("there is a place for each");
        let pass_on = || place.state.store(FULL | instance << 16, Release);
        if passed == Passed::BeforeItsWords {
            pass_on();
        }
        place.words.iter().for_each(|word| word.store(token, Relaxed));
        self.len.fetch_add(1, Release);
        if passed == Passed::Last {
            pass_on();
        }
    }

    fn take(&self, instance: u32) -> Option<u64> {
        if self.len.load(Acquire) == 0 {
            return None;
        }
        let place = self.places.iter().find(|place| place.take(FULL | instance << 16))?;
        let [one, other] = [0, 1].map(|word: usize| place.words[word].load(Relaxed));
        assert!(one == other && one != 0, "a token is reported before it is there");
        self.len.fetch_sub(1, Release);
        place.state.store(FREE, Release);
        Some(one)
    }
}

/// Each of some calls, of these policies, drops a token and looks for those of its policy at its end, as often as it finds one.
fn calls_drop_one_each(instances: &'static [u32], preemptions: usize, passed: Passed) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let dropped = Dropped::new();
        let call = |at: usize| {
            let dropped = dropped.clone();
            move || {
                dropped.note(instances[at], at as u64 + 1, passed);
                let mut found = Vec::new();
                while let Some(token) = dropped.take(instances[at]) {
                    found.push((instances[at], token));
                }
                found
            }
        };
        let others: Vec<_> = (1..instances.len()).map(|at| thread::spawn(call(at))).collect();
        let mut found = call(0)();
        others.into_iter().for_each(|other| found.extend(other.join().unwrap()));
        found.sort_by_key(|(_, token)| *token);
        let dropped_by: Vec<_> = instances.iter().copied().zip(1..).collect();
        assert_eq!(found, dropped_by, "each is reported once, to its policy");
        assert_eq!(dropped.len.load(Relaxed), 0);
    });
}

#[test]
fn tokens_that_are_dropped_on_two_cpus_are_each_reported_once() {
    for instances in [&[3, 3], &[3, 4]] {
        calls_drop_one_each(instances, 3, Passed::Last);
    }
}

/// With three preemptions this takes longer than a minute.
#[test]
fn tokens_that_are_dropped_on_three_cpus_are_each_reported_once() {
    calls_drop_one_each(&[3, 4, 3], 2, Passed::Last);
}

/// The model sees what it is there for.
#[test]
#[should_panic(expected = "before it is there")]
fn a_place_that_is_passed_on_before_its_words_holds_none() {
    calls_drop_one_each(&[3, 3], 3, Passed::BeforeItsWords);
}
