//! Keeps a panic of a policy from ending the replay, with its message, file and line.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Whether a policy runs on this thread, so that panics are its own and are not printed.
pub(crate) fn inside(inside: bool) {
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
    INSIDE.set(inside);
}

/// Runs `policy`; if it panics, says with what and where.
pub(crate) fn contained<R>(policy: impl FnOnce() -> R) -> Result<R, String> {
    // Nothing that the policy owns is used again after a panic.
    catch_unwind(AssertUnwindSafe(policy)).map_err(|payload| match CAUGHT.take() {
        Some(message) => message,
        // No panic: the coroutine is thrown away, and its stack is unwound.
        None => resume_unwind(payload),
    })
}
