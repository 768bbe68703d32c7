//! Unpacks what is compressed, up to a limit: a few bytes can stand for any number.

use std::io::{self, Read};

use flate2::read::ZlibDecoder;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// A window of so many bytes, as a power of two, is believed: it is memory.
const WINDOW_LOG_MAX: u32 = 24;

/// How much is unpacked at a time.
const PIECE: usize = 1 << 16;

/// How the pieces of a file are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Zstd,
    Zlib,
}

/// Unpacks a piece that has `len` bytes then by its header; it gets no more.
pub(crate) fn unpack(packing: Packing, packed: &[u8], len: u64) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    match packing {
        Packing::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(packed)?;
            decoder.window_log_max(WINDOW_LOG_MAX)?;
            decoder.take(len).read_to_end(&mut unpacked)?;
        }
        Packing::Zlib => drop(ZlibDecoder::new(packed).take(len).read_to_end(&mut unpacked)?),
    }
    Ok(unpacked)
}

/// Unpacks a stream that comes in pieces.
pub(crate) struct Unpacker(Decoder<'static>);

impl Unpacker {
    pub(crate) fn new() -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(WINDOW_LOG_MAX))?;
        Ok(Self(decoder))
    }

    /// Adds what is in the next piece. Whether it was no more than `most` bytes.
    pub(crate) fn unpack(&mut self, packed: &[u8], most: usize, unpacked: &mut Vec<u8>) -> io::Result<bool> {
        let (begin, mut input) = (unpacked.len(), InBuffer::around(packed));
        loop {
            let end = unpacked.len();
            unpacked.resize(end + PIECE, 0);
            let mut output = OutBuffer::around(&mut unpacked[end..]);
            let done = self.0.run(&mut input, &mut output);
            let len = output.pos();
            unpacked.truncate(end + len);
            done?;
            if unpacked.len() - begin > most {
                return Ok(false);
            }
            // With room left it has given all that it has.
            if len < PIECE && input.pos() == packed.len() {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A megabyte that is small when it is compressed.
    fn packed() -> [(Packing, Vec<u8>); 2] {
        let plain = vec![7; 1 << 20];
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        zlib.write_all(&plain).unwrap();
        [(Packing::Zstd, zstd::encode_all(&plain[..], 1).unwrap()), (Packing::Zlib, zlib.finish().unwrap())]
    }

    #[test]
    fn nothing_becomes_larger_than_it_is_told_to_be() {
        for (packing, packed) in packed() {
            assert!(packed.len() < 10_000);
            assert_eq!(unpack(packing, &packed, 1 << 20).unwrap(), vec![7; 1 << 20]);
            assert_eq!(unpack(packing, &packed, 1_000).unwrap(), [7; 1_000]);
            assert!(unpack(packing, b"something else", 1_000).is_err());
        }
    }

    #[test]
    fn a_stream_is_unpacked_as_it_comes_until_it_is_too_much() {
        let [(_, packed), _] = packed();
        let (mut unpacker, mut unpacked) = (Unpacker::new().unwrap(), Vec::new());
        for piece in packed.chunks(10) {
            assert!(unpacker.unpack(piece, 1 << 20, &mut unpacked).unwrap());
        }
        assert_eq!(unpacked, vec![7; 1 << 20]);
        assert!(!Unpacker::new().unwrap().unpack(&packed, 1_000, &mut Vec::new()).unwrap());
    }
}
