//! What a policy notes in a call, on its way from the policy to what writes it down.

use core::fmt;

use zerocopy::IntoBytes;

/// Words of the name of a note.
pub const NOTE_NAME_WORDS: usize = 4;

/// Longest name of a note, in bytes.
pub const NOTE_NAME_MAX: usize = NOTE_NAME_WORDS * size_of::<u64>();

/// The name of a note in the words in which it is written: text, filled up with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NoteName(pub [u64; NOTE_NAME_WORDS]);

impl NoteName {
    /// Nothing if it is too long, or empty.
    pub fn new(name: &str) -> Option<Self> {
        if name.is_empty() || name.len() > NOTE_NAME_MAX {
            return None;
        }
        let mut words = [0; NOTE_NAME_WORDS];
        for (word, chunk) in words.iter_mut().zip(name.as_bytes().chunks(size_of::<u64>())) {
            word.as_mut_bytes()[..chunk.len()].copy_from_slice(chunk);
        }
        Some(Self(words))
    }

    /// The words that are not empty: a name has no zeros in it.
    pub fn pieces(&self) -> impl Iterator<Item = u64> + use<> {
        self.0.into_iter().take_while(|word| *word != 0)
    }
}

/// Bytes that are no text, as in a damaged file, are shown as such.
impl fmt::Display for NoteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.as_bytes();
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        bytes[..len].utf8_chunks().try_for_each(|chunk| {
            f.write_str(chunk.valid())?;
            if chunk.invalid().is_empty() { Ok(()) } else { f.write_str("\u{fffd}") }
        })
    }
}

/// One note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Noted {
    /// Its name.
    pub name: NoteName,
    /// What the policy noted.
    pub value: u64,
}

/// A note as it is listed: `stolen_from_cpu 3`.
impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.value)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_name_comes_back_as_it_was() {
        for name in ["a", "eight_by", "nine_byte", "thirty_two_bytes_are_the_longest"] {
            let packed = NoteName::new(name).unwrap();
            assert_eq!(packed.to_string(), name);
            assert_eq!(packed.pieces().count(), name.len().div_ceil(8));
        }
        assert_eq!(NoteName::new(""), None);
        assert_eq!(NoteName::new("thirty_three_bytes_are_one_too_ma"), None);
    }

    #[test]
    fn any_words_can_be_shown() {
        assert_eq!(NoteName([u64::MAX, 0, 0, 0]).to_string(), "\u{fffd}".repeat(8));
        assert_eq!(Noted { name: NoteName::default(), value: 7 }.to_string(), " 7");
    }
}
