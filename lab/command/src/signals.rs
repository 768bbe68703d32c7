//! Ctrl-C and its relatives, for as long as there is a handler.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};

type Handler = Box<dyn FnMut(i32) + Send>;

static HANDLERS: Mutex<Vec<(u64, Handler)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);
static WATCHER: Once = Once::new();

/// While this lives, signals that ask this process to end go to its handler; without any, they end it as usual.
pub struct Handling(u64);

/// From now on hands over every signal that asks this process to end. Several may be told.
pub fn handle(handler: impl FnMut(i32) + Send + 'static) -> io::Result<Handling> {
    let number = NEXT.fetch_add(1, Relaxed);
    handlers().push((number, Box::new(handler)));
    let mut result = Ok(Handling(number));
    WATCHER.call_once(|| match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(mut signals) => {
            thread::spawn(move || signals.forever().for_each(deliver));
        }
        Err(error) => result = Err(error),
    });
    result
}

fn deliver(signal: i32) {
    let mut handlers = handlers();
    handlers.iter_mut().for_each(|(_, handler)| handler(signal));
    if handlers.is_empty() {
        // If even that fails, the signal is ignored.
        let _ = emulate_default_handler(signal);
    }
}

/// A handler that panicked leaves nothing half done here.
fn handlers() -> MutexGuard<'static, Vec<(u64, Handler)>> {
    HANDLERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Handling {
    fn drop(&mut self) {
        handlers().retain(|(number, _)| *number != self.0);
    }
}
