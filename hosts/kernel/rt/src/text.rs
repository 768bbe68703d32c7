//! Text of bounded length, without allocation.

use core::fmt;

/// Text that is cut at `N` bytes.
#[derive(Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// No text yet.
    pub const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = N - self.len;
        let taken = text.len().min(room);
        self.bytes[self.len..self.len + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        // What formats stops there.
        if taken < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}
