//! Keeps a panic of a policy from ending the search, and from being printed at every try.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `policy`; if it panics, says with what and where. Other panics are printed as before.
pub(crate) fn contained<R>(policy: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                return others(info);
            }
            let payload = info.payload();
            let message = payload.downcast_ref::<&str>().copied();
            let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let at = info.location().map_or_else(String::new, |at| format!(" ({}:{})", at.file(), at.line()));
            CAUGHT.set(Some(format!("{}{at}", message.unwrap_or("a panic without a message"))));
        }));
    });
    INSIDE.set(true);
    // Nothing that the policy owns is used again after a panic.
    let result = catch_unwind(AssertUnwindSafe(policy));
    INSIDE.set(false);
    result.map_err(|_| CAUGHT.take().unwrap_or_else(|| "it panicked without a message".into()))
}
