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

    /// The bytes that were written so far.
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

#[cfg(test)]
mod tests {
    use core::fmt::Write;

    use super::*;

    #[test]
    fn text_that_fits_is_kept_as_it_is() {
        let mut text = Text::<8>::new();
        assert_eq!(text.as_bytes(), b"");
        assert!(write!(text, "a{}c", 1).is_ok());
        assert_eq!(text.as_bytes(), b"a1c");
        assert!(text.write_str("12345").is_ok(), "all of the room can be used");
        assert!(text.write_str("").is_ok(), "nothing fits into no room");
        assert_eq!(text.as_bytes(), b"a1c12345");
    }

    #[test]
    fn text_beyond_the_room_is_cut_and_its_writer_stops() {
        let mut text = Text::<4>::default();
        assert!(text.write_str("abcde").is_err());
        assert_eq!(text.as_bytes(), b"abcd");
        assert!(text.write_str("f").is_err());
        assert_eq!(text.as_bytes(), b"abcd", "what does not fit changes nothing before it");
    }

    #[test]
    fn a_cut_may_go_through_a_character() {
        let mut text = Text::<4>::new();
        assert!(text.write_str("abcü").is_err());
        assert_eq!(text.as_bytes(), b"abc\xc3");
    }

    #[test]
    fn text_without_room_takes_nothing() {
        let mut text = Text::<0>::new();
        assert!(text.write_str("a").is_err());
        assert_eq!(text.as_bytes(), b"");
    }
}
