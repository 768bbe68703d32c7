//! Bytes of others: never read beyond their end.

use std::io::{Read, Seek, SeekFrom};

use crate::ForeignError;

/// A file of known length.
pub(crate) struct Source<R> {
    inner: R,
    len: u64,
}

impl<R: Read + Seek> Source<R> {
    pub(crate) fn new(inner: R, len: u64) -> Self {
        Self { inner, len }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// A piece of it, which has to be there.
    pub(crate) fn read(&mut self, at: u64, len: u64) -> Result<Vec<u8>, ForeignError> {
        let mut bytes = Vec::new();
        self.read_into(at, len, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads into memory that is there already.
    pub(crate) fn read_into(&mut self, at: u64, len: u64, bytes: &mut Vec<u8>) -> Result<(), ForeignError> {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        end.ok_or(ForeignError::Damaged { at: at.min(self.len) })?;
        self.inner.seek(SeekFrom::Start(at))?;
        bytes.resize(len as usize, 0);
        self.inner.read_exact(bytes)?;
        Ok(())
    }
}

/// Takes numbers and texts off the front of some bytes. `None` is that there are not enough.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    pub(crate) rest: &'a [u8],
    pub(crate) is_big: bool,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(rest: &'a [u8], is_big: bool) -> Self {
        Self { rest, is_big }
    }

    pub(crate) fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(len).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    /// A number of up to eight bytes.
    pub(crate) fn number(&mut self, len: u64) -> Option<u64> {
        Some(number(self.take(len)?, self.is_big))
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        Some(self.number(2)? as u16)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(self.number(4)? as u32)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.number(8)
    }

    /// A text that ends with a zero.
    pub(crate) fn text(&mut self) -> Option<String> {
        let len = self.rest.iter().position(|byte| *byte == 0)?;
        let text = self.take(len as u64)?;
        self.take(1)?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

/// A number of up to eight bytes.
pub(crate) fn number(bytes: &[u8], is_big: bool) -> u64 {
    let shift_in = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    if is_big { bytes.iter().fold(0, shift_in) } else { bytes.iter().rev().fold(0, shift_in) }
}
