//! Writes recordings.

use std::collections::BTreeMap;
use std::format;
use std::io::{self, Write};
use std::vec::Vec;

use super::{
    BEFORE_MARKS, BlockHeader, END, Header, INSTANCE, Instance, MAGIC, PASS, PASS_MAX, PREAMBLE_LEN, RECORDS,
    RecordingError,
};
use crate::{RECORDING_VERSION, Record};

/// Records of a block: as many as a reader keeps in its cache.
const BLOCK_RECORDS: usize = 1 << 12;

/// How hard zstd tries: little, because the machine that is recorded has other things to do.
const LEVEL: i32 = 1;

/// Writes a recording, block by block. After an error it writes nothing more.
pub struct RecordingWriter<W: Write> {
    to: W,
    /// How much is written.
    at: u64,
    compressor: zstd::bulk::Compressor<'static>,
    /// The records of a block as bytes, and the block as it is written.
    plain: Vec<u8>,
    block: Vec<u8>,
    /// Where the next records of each CPU begin if none are lost.
    ends: BTreeMap<u32, u64>,
    of_pass: u64,
    records: u64,
    lost: u64,
    is_over: bool,
}

impl<W: Write> RecordingWriter<W> {
    /// Begins a recording.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(to: W, header: &Header) -> Result<Self, RecordingError> {
        let json = serde_json::to_vec(header).map_err(|error| RecordingError::Header { why: format!("{error}") })?;
        let mut bytes = Vec::with_capacity(PREAMBLE_LEN + json.len());
        bytes.extend(MAGIC);
        bytes.extend(RECORDING_VERSION.to_le_bytes());
        bytes.extend((json.len() as u32).to_le_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&bytes[MAGIC.len()..]);
        checksum.update(&json);
        bytes.extend(checksum.finalize().to_le_bytes());
        bytes.extend(json);
        let compressor =
            zstd::bulk::Compressor::new(LEVEL).map_err(|source| RecordingError::Write { at: 0, source })?;
        let mut writer = Self {
            to,
            at: 0,
            compressor,
            plain: Vec::new(),
            block: bytes,
            ends: BTreeMap::new(),
            of_pass: 0,
            records: 0,
            lost: 0,
            is_over: false,
        };
        writer.put()?;
        Ok(writer)
    }

    /// Writes records of `cpu`, of which the first is number `first` of all that it has had. If that is beyond the ones
    /// that came last, those between are lost.
    ///
    /// # Errors
    /// When they cannot be written.
    ///
    /// # Panics
    /// If some of them have been written already.
    pub fn block(&mut self, cpu: u32, first: u64, records: &[Record]) -> Result<(), RecordingError> {
        let end = self.ends.entry(cpu).or_insert(0);
        assert!(first >= *end, "record {first} of CPU {cpu} is to be written after {end} have been");
        self.lost += first - *end;
        *end = first + records.len() as u64;
        self.records += records.len() as u64;
        for (piece, number) in records.chunks(BLOCK_RECORDS).zip((first..).step_by(BLOCK_RECORDS)) {
            self.plain.clear();
            self.plain.extend(piece.iter().flat_map(|record| record.0).flat_map(u64::to_le_bytes));
            let packed = self.compressor.compress(&self.plain);
            let packed = packed.map_err(|source| RecordingError::Write { at: self.at, source })?;
            self.put_block(RECORDS, cpu, number, piece.len() as u32, &packed)?;
        }
        if self.of_pass > PASS_MAX / 2 {
            let source = io::Error::other("a pass takes more than 512 MiB; this is a bug of Ekiden, report it");
            return Err(RecordingError::Write { at: self.at, source });
        }
        Ok(())
    }

    /// Says what an instance of a policy is, before the pass ends in which its first mark is. The one of the header need not be told of, unless
    /// [`before_marks`](Self::before_marks) is said.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn instance(&mut self, number: u64, instance: &Instance) -> Result<(), RecordingError> {
        let json = serde_json::to_vec(instance).map_err(|error| RecordingError::Header { why: format!("{error}") })?;
        self.put_block(INSTANCE, 0, number, 0, &json)
    }

    /// Says, before the first pass ends, to which instance the calls before the first mark belong, or that this is not known. From then on no
    /// instance is known of which [nothing is told](Self::instance), not even that of the header.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn before_marks(&mut self, instance: Option<&Instance>) -> Result<(), RecordingError> {
        self.instance(BEFORE_MARKS, instance.unwrap_or(&Instance::default()))
    }

    /// All that any CPU had written down before `time_ns`, on the host's clock, is in the file; what comes from here on
    /// began later, or had not ended.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn pass(&mut self, time_ns: u64) -> Result<(), RecordingError> {
        self.of_pass = 0;
        self.put_block(PASS, 0, time_ns, 0, &[])?;
        self.to.flush().map_err(|source| RecordingError::Write { at: self.at, source })
    }

    /// How many records there are in it, and how many are missing.
    pub fn counts(&self) -> (u64, u64) {
        (self.records, self.lost)
    }

    /// How long it is, in bytes.
    pub fn len(&self) -> u64 {
        self.at
    }

    /// Whether nothing was written; never, because a recording has a header.
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Ends the recording, and gives back where it was written.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> Result<W, RecordingError> {
        self.put_block(END, 0, self.records, 0, &[])?;
        self.to.flush().map_err(|source| RecordingError::Write { at: self.at, source })?;
        Ok(self.to)
    }

    fn put_block(
        &mut self,
        kind: u32,
        cpu: u32,
        number: u64,
        count: u32,
        payload: &[u8],
    ) -> Result<(), RecordingError> {
        let checksum = crc32fast::hash(payload);
        let header = BlockHeader { kind, cpu, number, count, len: payload.len() as u32, checksum };
        self.block.clear();
        self.block.extend(header.to_bytes());
        self.block.extend(payload);
        self.of_pass += self.block.len() as u64;
        self.put()
    }

    fn put(&mut self) -> Result<(), RecordingError> {
        let fail = |at, source| Err(RecordingError::Write { at, source });
        if self.is_over {
            return fail(self.at, io::Error::other("writing has failed before"));
        }
        if let Err(source) = self.to.write_all(&self.block) {
            self.is_over = true;
            return fail(self.at, source);
        }
        self.at += self.block.len() as u64;
        Ok(())
    }
}
