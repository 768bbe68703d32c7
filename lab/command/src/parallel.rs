//! Many simulations at once, on all CPUs.

use std::{
    sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

/// Does `work` on every item, as many at a time as this machine has CPUs, and returns the results in the order of the
/// items. `told` hears of each item that is done, in the order in which that happens.
pub fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync, mut told: impl FnMut(usize)) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..workers {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    let Some(item) = items.get(index) else { return };
                    if sender.send((index, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (index, result) in receiver {
            told(index);
            results[index] = Some(result);
        }
    });
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        let mut told = Vec::new();
        let squares = map(&items, |item| item * item, |index| told.push(index));
        assert!(squares.iter().zip(&items).all(|(square, item)| *square == item * item) && squares.len() == 100);
        told.sort_unstable();
        assert!(told.into_iter().eq(0..100));
    }

    #[test]
    fn of_nothing_there_is_nothing() {
        assert!(map(&[0_u8; 0], |item| *item, |_| {}).is_empty());
    }
}
