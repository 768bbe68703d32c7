//! Activations that have nothing to do and sleep: one of them in epoll, for all; the others until they are woken up.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst, fence},
    },
    thread::Thread,
    time::Duration,
};

use crate::{locked, sockets::Sockets, thread};

/// Timeout of a sleep in epoll. It ends for other reasons.
const LONG: Duration = Duration::from_secs(3600);

/// The activations that sleep.
#[derive(Default)]
pub(crate) struct Sleepers {
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    parked: Vec<(usize, Thread)>,
    poller: Option<usize>,
}

impl Sleepers {
    /// Sleeps until there may be something to do. `awake` says whether there is: it is asked after all others can see the sleeper, so
    /// that either it sees what they have for it, or they see that it sleeps. Returns threads that can run.
    pub(crate) fn sleep(&self, me: usize, sockets: &Sockets, awake: impl Fn() -> bool) -> Vec<thread::Thread> {
        let polls = {
            let state = &mut *locked(&self.state);
            if state.poller.is_none() {
                state.poller = Some(me);
            } else {
                state.parked.push((me, std::thread::current()));
            }
            self.count.fetch_add(1, SeqCst);
            state.poller == Some(me)
        };
        fence(SeqCst);
        let mut ready = Vec::new();
        if polls {
            if !awake() {
                ready = sockets.poll(LONG);
            }
        } else {
            while !awake() && locked(&self.state).parked.iter().any(|(other, _)| *other == me) {
                std::thread::park();
            }
        }
        let state = &mut *locked(&self.state);
        state.parked.retain(|(other, _)| *other != me);
        if polls {
            state.poller = None;
            sockets.unkick();
        }
        self.count.fetch_sub(1, SeqCst);
        ready
    }

    /// Wakes up one activation, if one sleeps. What it is to do was said before.
    pub(crate) fn wake_one(&self, sockets: &Sockets) {
        fence(SeqCst);
        if self.count.load(SeqCst) == 0 {
            return;
        }
        let state = &mut *locked(&self.state);
        match state.parked.pop() {
            Some((_, thread)) => thread.unpark(),
            None if state.poller.is_some() => sockets.kick(),
            None => {}
        }
    }

    /// Wakes up this one if it sleeps.
    pub(crate) fn wake(&self, which: usize, sockets: &Sockets) {
        fence(SeqCst);
        let state = &mut *locked(&self.state);
        if state.poller == Some(which) {
            sockets.kick();
        }
        if let Some(at) = state.parked.iter().position(|(other, _)| *other == which) {
            state.parked.remove(at).1.unpark();
        }
    }

    /// Whether an activation sleeps and none does in epoll.
    pub(crate) fn none_polls(&self) -> bool {
        let state = &*locked(&self.state);
        state.poller.is_none() && !state.parked.is_empty()
    }
}
