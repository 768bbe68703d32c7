//! Keeps a panic of a policy from ending the simulation, with its message, file and line.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `policy`; if it panics, says with what and where instead of printing it. Other panics are printed as before.
pub(crate) fn contained<R>(policy: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |info| {
            if INSIDE.get() {
                CAUGHT.set(Some(describe(info)));
            } else {
                others(info);
            }
        }));
    });
    INSIDE.set(true);
    // Nothing that the policy owns is used again after a panic.
    let result = catch_unwind(AssertUnwindSafe(policy));
    INSIDE.set(false);
    result.map_err(|_| CAUGHT.take().unwrap_or_else(|| "it panicked without a message".into()))
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = message.unwrap_or("a panic without a message");
    match info.location() {
        Some(at) => format!("{message} ({}:{})", at.file(), at.line()),
        None => message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(place: &Cell<u32>) {
        place.set(line!() + 1);
        panic!("boom {}", 1);
    }

    #[test]
    fn a_panic_comes_back_with_its_message_and_place() {
        let place = Cell::new(0);
        let caught: Result<(), _> = contained(|| fail(&place));
        assert_eq!(caught, Err(format!("boom 1 ({}:{})", file!(), place.get())));
        assert_eq!(contained(|| 7), Ok(7));
    }
}
