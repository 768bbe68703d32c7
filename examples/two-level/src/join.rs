//! The result of a user-level thread that has ended.

use std::{
    any::Any,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex},
    thread::Result,
};

use crate::{
    activation, locked,
    thread::{Left, Place, Thread, is_user_level, leave},
};

/// Waits for a user-level thread. If it is dropped, the thread runs on.
pub struct JoinHandle<T>(Arc<Remains<T>>);

struct Remains<T> {
    state: Mutex<State<T>>,
    /// For kernel threads that wait.
    ended: Condvar,
}

enum State<T> {
    Runs(Vec<Thread>),
    Ended(Result<T>),
    Taken,
}

impl<T> JoinHandle<T> {
    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        !matches!(*locked(&self.0.state), State::Runs(_))
    }

    fn take(state: &mut State<T>) -> Option<Result<T>> {
        match mem::replace(state, State::Taken) {
            State::Ended(result) => Some(result),
            other => {
                *state = other;
                None
            }
        }
    }
}

impl<T: Send + 'static> JoinHandle<T> {
    /// Waits until the thread ends, and returns what it returned. A user-level thread that calls this leaves its activation
    /// meanwhile; another thread sleeps in the kernel.
    ///
    /// # Errors
    /// What it panicked with; a text if its runtime ended before it did.
    pub fn join(self) -> Result<T> {
        loop {
            if is_user_level() {
                if let Some(result) = Self::take(&mut locked(&self.0.state)) {
                    return result;
                }
                leave(Left::Waits(self.0.clone()));
            } else {
                let runs = |state: &mut State<T>| matches!(state, State::Runs(_));
                let mut state = self
                    .0
                    .ended
                    .wait_while(locked(&self.0.state), runs)
                    .unwrap_or_else(|poisoned| poisoned.into_inner());
                if let Some(result) = Self::take(&mut state) {
                    return result;
                }
            }
        }
    }
}

impl<T: Send> Place for Remains<T> {
    fn keep(&self, thread: Thread) -> Option<Thread> {
        match &mut *locked(&self.state) {
            State::Runs(waiting) => waiting.push(thread),
            _ => return Some(thread),
        }
        None
    }
}

/// Says in any case how its thread has ended.
struct Ends<T>(Arc<Remains<T>>);

impl<T> Ends<T> {
    fn with(&self, result: Result<T>) {
        let before = {
            let state = &mut *locked(&self.0.state);
            if !matches!(state, State::Runs(_)) {
                return;
            }
            mem::replace(state, State::Ended(result))
        };
        self.0.ended.notify_all();
        if let State::Runs(waiting) = before {
            waiting.into_iter().for_each(activation::ready);
        }
    }
}

impl<T> Drop for Ends<T> {
    fn drop(&mut self) {
        self.with(Err(Box::new("the runtime ended before this thread did") as Box<dyn Any + Send>));
    }
}

/// What a thread is to do so that its end is noted, and the handle that hears of it.
pub(crate) fn noted<T: Send + 'static>(
    does: impl FnOnce() -> T + Send + 'static,
) -> (impl FnOnce() + Send + 'static, JoinHandle<T>) {
    let remains = Arc::new(Remains { state: Mutex::new(State::Runs(Vec::new())), ended: Condvar::new() });
    let ends = Ends(remains.clone());
    let noted = move || {
        let result = catch_unwind(AssertUnwindSafe(does));
        ends.with(result);
    };
    (noted, JoinHandle(remains))
}
