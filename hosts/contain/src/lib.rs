//! What programs put around a policy. A panic does not end the program that runs it, and is not printed: what is found again and
//! again would be printed again and again. The CPUs that a decision looked at can be known, and what the policy says
//! of it in words.
//!
//! Only for programs. In the kernel a guard does this, `hosts/kernel/module/guard_x86_64.S`.
#![forbid(unsafe_code)]

mod considered;
mod text;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;

pub use considered::considered;
pub use text::{Show, texts_of_thread};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `policy`; if it panics, says with what and where instead of printing it. Nothing that the policy owns may be used
/// after that.
///
/// It may be a part of a coroutine that is switched away from in the middle, if its caller resumes it [`inside`]. When
/// such a coroutine is thrown away, its stack is unwound through here: that is no panic, and unwinding continues.
///
/// # Errors
/// The message of the panic, with its file and line.
pub fn contained<T>(policy: impl FnOnce() -> T) -> Result<T, String> {
    inside(|| {
        catch_unwind(AssertUnwindSafe(policy)).map_err(|payload| match CAUGHT.take() {
            Some(message) => message,
            None => resume_unwind(payload),
        })
    })
}

/// Does some work in which panics are a policy's: they are not printed, and go on to the [`contained`] that is around them.
/// Panics elsewhere on this thread, and on others, are printed as before.
pub fn inside<T>(work: impl FnOnce() -> T) -> T {
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
    let _back = Back(INSIDE.replace(true));
    work()
}

/// Makes it as it was before, even if the work unwinds.
struct Back(bool);

impl Drop for Back {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
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
    use std::rc::Rc;

    use super::*;
    use corosensei::{Coroutine, CoroutineResult, Yielder};

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
        assert!(!INSIDE.get());
    }

    #[test]
    fn a_panic_is_contained_in_a_coroutine_that_was_switched_away_from() {
        let mut coroutine = Coroutine::new(|yielder: &Yielder<(), ()>, ()| {
            contained(|| {
                yielder.suspend(());
                panic!("boom")
            })
        });
        assert!(matches!(inside(|| coroutine.resume(())), CoroutineResult::Yield(())));
        assert!(!INSIDE.get(), "what runs in between is not the policy");
        let CoroutineResult::Return(Err::<(), _>(caught)) = inside(|| coroutine.resume(())) else {
            unreachable!("it panics");
        };
        assert!(caught.starts_with("boom ("), "{caught}");
    }

    #[test]
    fn a_coroutine_that_is_thrown_away_has_not_panicked() {
        let goes_on = Rc::new(Cell::new(false));
        let has_gone_on = goes_on.clone();
        let mut coroutine = Coroutine::new(move |yielder: &Yielder<(), ()>, ()| {
            let _: Result<(), String> = contained(|| yielder.suspend(()));
            has_gone_on.set(true);
        });
        assert!(matches!(inside(|| coroutine.resume(())), CoroutineResult::Yield(())));
        inside(|| drop(coroutine));
        assert!(!goes_on.get());
        assert!(!INSIDE.get());
    }
}
