//! The engine's own lock. Its holder does nothing but go on to the end, so a wait for it ends with that, as the host has
//! calls wait, and for no longer than the engine lives.

use ekiden::wait_for;
use spin::mutex::{SpinMutex, SpinMutexGuard};

#[derive(Debug, Default)]
pub(crate) struct Lock<T>(SpinMutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinMutexGuard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => wait_for(|| self.0.try_lock()),
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}
