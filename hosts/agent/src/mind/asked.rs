//! What other threads of the process want from the agent's thread: it does it between two rounds, as nothing else may touch the engine.

use std::fmt;
use std::sync::{
    Mutex, PoisonError,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

use ekiden::Calls;
use ekiden_engine::Totals;

use super::Mind;

type Wish = Box<dyn FnOnce(&mut Mind) + Send>;

/// Where a wish waits until the agent's thread takes it. There is room for one.
#[derive(Default)]
pub(crate) struct Asked {
    is_there: AtomicBool,
    wish: Mutex<Option<Wish>>,
}

impl Asked {
    pub(crate) fn put(&self, wish: Wish) {
        *self.wish.lock().unwrap_or_else(PoisonError::into_inner) = Some(wish);
        self.is_there.store(true, Release);
    }

    /// Takes it back; false if the agent's thread has it.
    pub(crate) fn take_back(&self) -> bool {
        self.is_there.store(false, Release);
        self.wish.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }

    /// The agent's thread waits for no lock: what it cannot have now it asks for at the next round.
    fn take(&self) -> Option<Wish> {
        if !self.is_there.load(Acquire) {
            return None;
        }
        let wish = self.wish.try_lock().ok()?.take();
        self.is_there.store(false, Release);
        wish
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("is_there", &self.is_there).finish_non_exhaustive()
    }
}

/// What the engine has counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) calls: Calls,
    pub(crate) tasks: u64,
    pub(crate) totals: Totals,
    pub(crate) contract_violations: (u32, Option<String>),
}

impl Mind {
    /// Does what another thread of the process wants, if one does.
    pub(super) fn does_what_is_asked(&mut self) {
        if let Some(wish) = self.talk.asked.take() {
            wish(self);
        }
    }

    /// Tasks that the engine knows.
    pub(super) fn nr_tasks(&self) -> u64 {
        self.tasks.iter().filter(|known| !known.id.is_none()).count() as u64
    }

    pub(crate) fn counted(&self) -> Counted {
        let (violations, last) = self.engine.contract_violations();
        let contract_violations = (violations, last.map(|last| last.to_string()));
        Counted {
            calls: self.engine.calls(),
            tasks: self.nr_tasks(),
            totals: self.engine.totals(),
            contract_violations,
        }
    }
}
