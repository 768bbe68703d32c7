//! The engine's lock, for models in every order of memory.

use loom::sync::{Mutex, MutexGuard};

/// Gives as much order as the engine's own: a CPU that takes it sees what the one before did.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}
