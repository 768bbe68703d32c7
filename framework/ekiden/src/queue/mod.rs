//! Ready-made run queues (papers/001, "Runqueues management": FIFO, LIST and RED-BLACK TREE).
//!
//! All of them own the tokens that they hold, so a task is in one queue at a time by construction. The order of the
//! two ordered ones is that of their key: the caller computes it when it inserts, which is where the paper's ordering
//! function went. A key may be any `Ord` type: a number, a tuple, [`Reverse`](core::cmp::Reverse) of one for the
//! largest first, or a type with an `Ord` of its own. Equal keys leave in the order in which they came.
//!
//! | queue | in | out | find a task | for |
//! | --- | --- | --- | --- | --- |
//! | [`FifoQueue`] | O(1) | O(1) | O(n) | no order but arrival |
//! | [`OrderedQueue`] | O(n), near O(1) for keys that mostly grow | O(1) | O(n) | short queues |
//! | [`TreeQueue`] | O(log n) | O(log n) | O(n), O(log n) with the key | long queues |
//!
//! Each can be shared by CPUs: `claim_first` takes out the first token whose task may run on the CPU that asks.
//!
//! None of them locks: put it into a [`SpinLock`](crate::SpinLock). A queue that is dropped drops its tokens, which
//! loses their tasks.

use alloc::collections::VecDeque;

mod fifo;
mod ordered;
mod tree;

pub use fifo::FifoQueue;
pub use ordered::OrderedQueue;
pub use tree::TreeQueue;

/// Room for so many tokens is taken when a queue is made. Run queues are rarely longer, so that the first calls of a
/// policy do not stop to allocate.
const INITIAL_CAPACITY: usize = 16;

/// Takes the first entry out that is claimed; `claim` gives the others back that are to stay. Those that it has passed over go to the back, and
/// all of them to the front at the end: entries behind them would have to move for each of them otherwise, and a call of a policy with a thousand
/// tasks that may not run here would be too long.
fn claim_first<T>(entries: &mut VecDeque<T>, mut claim: impl FnMut(T) -> Result<T, Option<T>>) -> Option<T> {
    let mut passed = 0;
    let mut first = None;
    for _ in 0..entries.len() {
        match claim(entries.pop_front()?) {
            Ok(claimed) => {
                first = Some(claimed);
                break;
            }
            Err(Some(stays)) => {
                entries.push_back(stays);
                passed += 1;
            }
            Err(None) => {}
        }
    }
    entries.rotate_right(passed);
    first
}

#[cfg(test)]
mod tests {
    //! The queues against the plainest model of each.

    use alloc::{format, sync::Arc, vec::Vec};

    use ekiden_abi::{Call, Message, RawToken, RefusalReason};
    use proptest::prelude::*;

    use super::*;
    use crate::{CpuId, CpuMask, Cx, Schedulable, TaskId, Topology, cx::Host, token::Instance};

    /// Stands where the type of a policy goes.
    struct Nobody;

    type Token = Schedulable<Nobody>;

    fn task(slot: u32) -> TaskId {
        TaskId { slot, generation: 1 }
    }

    fn token(instance: Instance, slot: u32) -> Token {
        Schedulable::from_raw(RawToken { task: task(slot), cpu: 0, serial: 1 }, instance)
    }

    /// The task of a token that has left a queue.
    fn slot(token: Token) -> u32 {
        token.into_raw().task.slot
    }

    #[derive(Clone, Debug)]
    enum Step {
        PushBack(u32),
        PushFront(u32),
        PopFront,
        PopBack,
        Remove(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..8u32).prop_map(Step::PushBack),
            2 => (0..8u32).prop_map(Step::PushFront),
            2 => Just(Step::PopFront),
            1 => Just(Step::PopBack),
            1 => (0..8u32).prop_map(Step::Remove),
        ];
        prop::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn a_fifo_queue_is_a_list(steps in steps()) {
            let instance = Instance::next();
            let mut queue = FifoQueue::new();
            let mut model: Vec<u32> = Vec::new();
            for step in steps {
                match step {
                    Step::PushBack(slot) => {
                        queue.push_back(token(instance, slot));
                        model.push(slot);
                    }
                    Step::PushFront(slot) => {
                        queue.push_front(token(instance, slot));
                        model.insert(0, slot);
                    }
                    Step::PopFront => {
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(queue.pop_front().map(slot), expected);
                    }
                    Step::PopBack => prop_assert_eq!(queue.pop_back().map(slot), model.pop()),
                    Step::Remove(wanted) => {
                        let found = model.iter().position(|slot| *slot == wanted);
                        let expected = found.map(|index| model.remove(index));
                        prop_assert_eq!(queue.remove(task(wanted)).map(slot), expected);
                    }
                }
                prop_assert_eq!(queue.iter().map(|token| token.task().slot).collect::<Vec<_>>(), &model[..]);
                prop_assert_eq!(queue.front().map(|token| token.task().slot), model.first().copied());
                prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }

    /// Keys and tasks, as a list that is sorted after each insertion.
    #[derive(Default)]
    struct Model(Vec<(u8, u32)>);

    impl Model {
        fn insert(&mut self, key: u8, slot: u32) {
            self.0.push((key, slot));
            // Stable, so that equal keys stay in the order in which they came.
            self.0.sort_by_key(|(key, _)| *key);
        }

        fn take(&mut self, is_wanted: impl Fn((u8, u32)) -> bool) -> Option<(u8, u32)> {
            let index = self.0.iter().position(|entry| is_wanted(*entry))?;
            Some(self.0.remove(index))
        }
    }

    #[derive(Clone, Debug)]
    enum KeyedStep {
        Insert(u8, u32),
        Pop,
        Remove(u32),
        RemoveAt(u8, u32),
    }

    fn keyed_steps() -> impl Strategy<Value = Vec<KeyedStep>> {
        // Few keys and tasks, so that equal ones are common.
        let (keys, slots) = (0..6u8, 0..8u32);
        let step = prop_oneof![
            4 => (keys.clone(), slots.clone()).prop_map(|(key, slot)| KeyedStep::Insert(key, slot)),
            2 => Just(KeyedStep::Pop),
            1 => slots.clone().prop_map(KeyedStep::Remove),
            1 => (keys, slots).prop_map(|(key, slot)| KeyedStep::RemoveAt(key, slot)),
        ];
        prop::collection::vec(step, 0..80)
    }

    fn keyed_slot((key, token): (u8, Token)) -> (u8, u32) {
        (key, slot(token))
    }

    proptest! {
        #[test]
        fn an_ordered_queue_is_a_sorted_list(steps in keyed_steps()) {
            let instance = Instance::next();
            let mut queue = OrderedQueue::new();
            let mut model = Model::default();
            for step in steps {
                match step {
                    KeyedStep::Insert(key, slot) => {
                        queue.insert(key, token(instance, slot));
                        model.insert(key, slot);
                    }
                    KeyedStep::Pop => prop_assert_eq!(queue.pop_front().map(keyed_slot), model.take(|_| true)),
                    KeyedStep::Remove(wanted) | KeyedStep::RemoveAt(_, wanted) => {
                        let expected = model.take(|(_, slot)| slot == wanted);
                        prop_assert_eq!(queue.remove(task(wanted)).map(keyed_slot), expected);
                    }
                }
                let all: Vec<_> = queue.iter().map(|(key, token)| (*key, token.task().slot)).collect();
                prop_assert_eq!(&all, &model.0);
                prop_assert_eq!(queue.first().map(|(key, token)| (*key, token.task().slot)), all.first().copied());
                prop_assert_eq!((queue.len(), queue.is_empty()), (all.len(), all.is_empty()));
            }
        }

        #[test]
        fn a_tree_queue_is_a_sorted_list(steps in keyed_steps()) {
            let instance = Instance::next();
            let mut queue = TreeQueue::new();
            let mut model = Model::default();
            for step in steps {
                match step {
                    KeyedStep::Insert(key, slot) => {
                        queue.insert(key, token(instance, slot));
                        model.insert(key, slot);
                    }
                    KeyedStep::Pop => prop_assert_eq!(queue.pop_first().map(keyed_slot), model.take(|_| true)),
                    KeyedStep::Remove(wanted) => {
                        let expected = model.take(|(_, slot)| slot == wanted);
                        prop_assert_eq!(queue.remove(task(wanted)).map(keyed_slot), expected);
                    }
                    KeyedStep::RemoveAt(key, wanted) => {
                        let is_wanted = |entry: &(u8, u32)| *entry == (key, wanted);
                        // The first of all, or else the last of those.
                        let first = model.0.first().is_some_and(is_wanted).then_some(0);
                        let found = first.or_else(|| model.0.iter().rposition(is_wanted));
                        let expected = found.map(|index| model.0.remove(index).1);
                        prop_assert_eq!(queue.remove_at(&key, task(wanted)).map(slot), expected);
                    }
                }
                let all: Vec<_> = queue.iter().map(|(key, token)| (*key, token.task().slot)).collect();
                prop_assert_eq!(&all, &model.0);
                prop_assert_eq!(queue.first_key().copied(), all.first().map(|(key, _)| *key));
                prop_assert_eq!(queue.last_key().copied(), all.last().map(|(key, _)| *key));
                prop_assert_eq!((queue.len(), queue.is_empty()), (all.len(), all.is_empty()));
            }
        }
    }

    /// The outcome of a claim of the task in each entry.
    struct Claims([Result<(), RefusalReason>; 8]);

    impl Host for Claims {
        fn now_ns(&self) -> u64 {
            0
        }
        fn may_run(&self, _: TaskId, _: CpuId) -> bool {
            true
        }
        fn allowed_cpus(&self, _: TaskId, _: &mut CpuMask) {}
        fn idle_cpus(&self, _: &mut CpuMask) {}
        fn claim(&self, token: RawToken, cpu: CpuId) -> Result<(), RefusalReason> {
            assert_eq!(cpu, 1);
            self.0[token.task.slot as usize]
        }
    }

    fn answers() -> impl Strategy<Value = [Result<(), RefusalReason>; 8]> {
        use RefusalReason::*;
        prop::array::uniform8(prop::sample::select(&[
            Ok(()),
            Err(NotAllowed),
            Err(Busy),
            Err(Stale),
            Err(NotReady),
            Err(Gone),
        ]))
    }

    proptest! {
        #[test]
        fn the_first_that_may_run_here_is_claimed_and_the_others_stay(
            here in prop::array::uniform8(any::<bool>()),
            keys in prop::array::uniform8(0..3u8),
            answers in answers(),
        ) {
            let instance = Instance::next();
            let token = |slot: u32| {
                let cpu = u32::from(here[slot as usize]);
                Token::from_raw(RawToken { task: task(slot), cpu, serial: 1 }, instance)
            };
            let (mut fifo, mut ordered, mut tree) = (FifoQueue::new(), OrderedQueue::new(), TreeQueue::new());
            for slot in 0..8 {
                fifo.push_back(token(slot));
                ordered.insert(keys[slot as usize], token(slot));
                tree.insert(keys[slot as usize], token(slot));
            }
            let topology = Topology::flat(2).into();
            let host: Arc<dyn Host + Send> = Arc::new(Claims(answers));
            let message = Message::about_cpu(Call::PickNextTask, 1);
            let (mut slice_ns, mut timer_ns, mut kicks) = Default::default();
            let cx = Cx::new(&message, &topology, &host, &mut slice_ns, &mut timer_ns, &mut kicks);
            let is_good = |slot: &u32| here[*slot as usize] || answers[*slot as usize].is_ok();
            let stays = |slot: &u32| answers[*slot as usize].is_err_and(|reason| reason.token_is_good());
            // Good tokens before the one that is taken stay, and all after it.
            let left = |order: &[u32]| {
                let taken = order.iter().position(is_good);
                let (before, after) = order.split_at(taken.unwrap_or(order.len()));
                let left: Vec<u32> = before.iter().filter(|slot| stays(slot)).chain(after.iter().skip(1)).copied().collect();
                (taken.map(|at| order[at]), left)
            };
            let by_age: Vec<u32> = (0..8).collect();
            let mut by_key = by_age.clone();
            by_key.sort_by_key(|slot| keys[*slot as usize]);
            let checked = |token: Token| {
                assert_eq!(token.cpu(), 1);
                slot(token)
            };
            let slots = |token: &Token| token.task().slot;
            let taken = fifo.claim_first(&cx).map(checked);
            prop_assert_eq!((taken, fifo.iter().map(slots).collect()), left(&by_age));
            let taken = ordered.claim_first(&cx).map(|(_, token)| checked(token));
            prop_assert_eq!((taken, ordered.iter().map(|(_, token)| slots(token)).collect()), left(&by_key));
            // With one look less than it takes, nothing is taken, and what is worthless is dropped all the same.
            let looks = by_key.iter().position(is_good).unwrap_or(by_key.len());
            let not_yet = tree.claim_first_of(looks, &cx);
            prop_assert!(not_yet.is_none());
            let of_looks = by_key.iter().enumerate().filter(|(at, slot)| *at >= looks || stays(slot)).map(|(_, slot)| *slot);
            prop_assert_eq!(tree.iter().map(|(_, token)| slots(token)).collect::<Vec<_>>(), of_looks.collect::<Vec<_>>());
            let taken = tree.claim_first(&cx).map(|(_, token)| checked(token));
            prop_assert_eq!((taken, tree.iter().map(|(_, token)| slots(token)).collect()), left(&by_key));
        }
    }

    #[test]
    fn a_queue_shows_what_is_in_it() {
        let instance = Instance::next();
        let mut fifo = FifoQueue::default();
        let mut ordered = OrderedQueue::default();
        let mut tree = TreeQueue::default();
        fifo.push_back(token(instance, 3));
        ordered.insert(7, token(instance, 3));
        tree.insert(7, token(instance, 3));
        assert_eq!(format!("{fifo:?}"), "[the right to run task 3.1 on CPU 0]");
        assert_eq!(format!("{ordered:?}"), "[(7, the right to run task 3.1 on CPU 0)]");
        assert_eq!(format!("{tree:?}"), format!("{ordered:?}"));
    }
}
