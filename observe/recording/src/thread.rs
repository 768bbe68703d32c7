//! The call log of each thread: simulations that are recorded and recordings that are replayed in one program do not hear of
//! each other.

use std::cell::Cell;
use std::thread_local;

use ekiden_host::abi::{Message, Noted};
use ekiden_host::{call_log, hear_notes, keep_notes, run_call_log};

/// See [`ekiden_host::call_log`].
pub type Learn = fn(u64) -> u64;

/// See [`ekiden_host::hear_notes`].
pub type Hear = fn(&Message, Noted);

thread_local! {
    static LEARN: Cell<Option<Learn>> = const { Cell::new(None) };
    static HEAR: Cell<Option<Hear>> = const { Cell::new(None) };
}

/// From here on, `learn` is given what calls on this thread learn, and answers with what they are to go on with
/// ([`ekiden_host::call_log`]); nothing is asked if it is absent. Returns the one before.
///
/// The call log of the whole program runs from the first time on: what a call learns then costs a few instructions more, on
/// every thread.
pub fn call_log_of_thread(learn: Option<Learn>) -> Option<Learn> {
    if learn.is_some() {
        call_log(|value| LEARN.get().map_or(value, |learn| learn(value)));
        run_call_log(true);
    }
    LEARN.replace(learn)
}

/// From here on, `hear` is given what calls on this thread note; without one it is dropped. Returns the one before.
pub fn notes_of_thread(hear: Option<Hear>) -> Option<Hear> {
    if hear.is_some() {
        hear_notes(|message, noted| {
            if let Some(hear) = HEAR.get() {
                hear(message, noted);
            }
        });
        keep_notes(true);
    }
    HEAR.replace(hear)
}
