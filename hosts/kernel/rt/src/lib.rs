//! What every Rust object in the kernel needs: memory from a preallocated arena, a way to say why it panicked, and the
//! C tables through which `ekiden.ko` and policy modules know each other.
#![no_std]

mod arena;
mod table;
mod text;
mod wait;

pub use arena::{Arena, Blocks};
pub use table::{Baggage, CreateArgs, Deliver, HostTable, PolicyTable, Settings, TapeArgs};
pub use text::Text;
pub use wait::{GO_ON, TOO_LONG, Wait};

use core::panic::PanicInfo;

/// Longest text that describes a fault, in bytes.
pub const FAULT_TEXT_LEN: usize = 256;

/// Writes what a panic says, with its place, into a buffer on the stack.
pub fn describe_panic(info: &PanicInfo<'_>) -> Text<FAULT_TEXT_LEN> {
    use core::fmt::Write;
    let mut text = Text::new();
    // A text that does not fit is cut, and what formats it stops there.
    let _ = match info.location() {
        Some(place) => write!(text, "{} at {}:{}", info.message(), place.file(), place.line()),
        None => write!(text, "{}", info.message()),
    };
    text
}
