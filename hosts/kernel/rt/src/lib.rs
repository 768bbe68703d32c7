//! What every Rust object in the kernel needs: memory from a preallocated arena, a way to say why it panicked, and the
//! C tables through which `ekiden.ko` and policy modules know each other.
#![no_std]

#[cfg(test)]
extern crate std;

mod arena;
#[cfg(test)]
mod kernel_fakes;
mod table;
mod text;
mod wait;

pub use arena::{Arena, Blocks};
pub use table::{CallLogArgs, CreateArgs, Deliver, HandoverState, HostTable, PolicyTable, Settings};
pub use text::Text;
pub use wait::{GO_ON, TOO_LONG, Wait};

use core::{
    fmt::Display,
    panic::{Location, PanicInfo},
};

/// Longest text that describes a fault, in bytes.
pub const FAULT_TEXT_LEN: usize = 256;

/// Writes what a panic says, with its place, into a buffer on the stack.
pub fn describe_panic(info: &PanicInfo<'_>) -> Text<FAULT_TEXT_LEN> {
    describe(info.message(), info.location())
}

/// Describes a panic by its message and place: outside of a panic handler, nothing can make a [`PanicInfo`].
fn describe(message: impl Display, place: Option<&Location<'_>>) -> Text<FAULT_TEXT_LEN> {
    use core::fmt::Write;
    let mut text = Text::new();
    // A text that does not fit is cut, and what formats it stops there.
    let _ = match place {
        Some(place) => write!(text, "{message} at {}:{}", place.file(), place.line()),
        None => write!(text, "{message}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;

    fn said(message: &str, place: Option<&Location<'_>>) -> String {
        String::from_utf8_lossy(describe(message, place).as_bytes()).into_owned()
    }

    #[test]
    fn a_panic_is_described_with_its_file_and_line() {
        let place = Location::caller();
        assert_eq!(said("no task", Some(place)), std::format!("no task at {}:{}", file!(), place.line()));
        assert_eq!(said("no task", None), "no task");
    }

    #[test]
    fn a_long_message_keeps_its_beginning_and_loses_the_place() {
        let long = "x".repeat(FAULT_TEXT_LEN - 4);
        let text = said(&long, Some(Location::caller()));
        assert_eq!((text.len(), text.strip_prefix(&*long)), (FAULT_TEXT_LEN, Some(" at ")));
        assert_eq!(said(&long.repeat(9), Some(Location::caller())).len(), FAULT_TEXT_LEN);
    }

    /// A `Display` that is formatted may be the policy's own, and burns fuel.
    #[test]
    fn a_message_is_not_formatted_beyond_the_room_for_it() {
        struct Endless<'a>(&'a core::cell::Cell<u32>);
        impl Display for Endless<'_> {
            fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                loop {
                    self.0.set(self.0.get() + 1);
                    to.write_str("sixteen letters.")?;
                }
            }
        }
        let times = core::cell::Cell::new(0);
        assert_eq!(describe(Endless(&times), None).as_bytes().len(), FAULT_TEXT_LEN);
        assert_eq!(times.get() as usize, FAULT_TEXT_LEN / 16 + 1);
    }
}
