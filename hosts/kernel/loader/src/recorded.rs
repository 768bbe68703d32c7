//! What a recorder of the kernel's scheduler takes out of its rings, and the trace that is made of it.

use ekiden_trace::Trace;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

/// `struct record` of `hosts/kernel/bpf/record.bpf.c`: what the kernel wrote down, which stands for some records of a trace. To put it away for later takes
/// far less than to tell what it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Raw {
    pub(crate) time_ns: u64,
    pub(crate) value: u64,
    pub(crate) pid: u32,
    /// A number of `enum what`, and in the upper half a CPU; 0 if there is nothing, or not all of it yet.
    pub(crate) what: u32,
}

impl Raw {
    /// Bytes that it takes.
    pub const LEN: usize = size_of::<Self>();

    /// The bytes in memory.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        transmute!(self)
    }

    /// What [`Raw::to_bytes`] made bytes of.
    #[inline]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        transmute!(bytes)
    }
}

/// A recording in memory.
#[derive(Debug)]
pub struct Recording {
    /// What happened.
    pub trace: Trace,
    /// The time of the monotonic clock at which the trace's times begin.
    pub begin_ns: u64,
    /// Records that there was no room for: if there are any, the trace has holes.
    pub lost: u64,
}
