//! What policies say in words.

use std::cell::Cell;
use std::fmt::Arguments;

use ekiden_host::abi::Message;
use ekiden_host::observe::{observe_texts, show_texts};

/// Is given the message of a call and a text from it.
pub type Show = fn(&Message, Arguments<'_>);

thread_local! {
    static SHOW: Cell<Option<Show>> = const { Cell::new(None) };
}

/// From here on, `show` is given the text of every [`debug!`](ekiden::debug!) in calls on this thread; without one the text is dropped.
/// Returns the one before.
pub fn texts_of_thread(show: Option<Show>) -> Option<Show> {
    if show.is_some() {
        observe_texts(|message, text| {
            if let Some(show) = SHOW.get() {
                show(message, text);
            }
        });
        show_texts(true);
    }
    SHOW.replace(show)
}
