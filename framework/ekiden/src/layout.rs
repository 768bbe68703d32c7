//! Which states look the same in memory, so that one build of a policy can take over what another one left there.

use alloc::{boxed::Box, collections::BTreeMap, collections::VecDeque, string::String, sync::Arc, vec::Vec};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};

use ekiden_abi::TaskId;

use crate::{
    Cpu, CpuMask, FifoQueue, Group, OrderedQueue, PerCpu, PerLlc, PerNode, PerTask, Schedulable, Shared, SpinLock,
    Topology, TreeQueue, Word,
};

/// A type whose values mean the same to every build that gives it the same fingerprint, and may stay where they are when
/// another build of the policy takes over.
///
/// Put `#[derive(Layout)]` on the policy and on the types of its fields. All of their fields have to be of such types too:
/// numbers, atomics, the framework's queues, locks and tables, `Vec`, `Box`, `Option` and the like. What points into a program
/// is not among them: references, functions, trait objects.
///
/// The fingerprint covers names, types, sizes and offsets of all fields, the compiler, and the source of the framework. It does
/// not cover what a number stands for: a field that gets another meaning needs another name.
///
/// ```
/// use ekiden::Layout;
///
/// mod before {
///     #[derive(ekiden::Layout)]
///     pub struct Counts { pub waiting: u32, pub running: u32 }
/// }
/// mod after {
///     #[derive(ekiden::Layout)]
///     pub struct Counts { pub waiting: u32, pub asleep: u32 }
/// }
///
/// // Another name may be another meaning.
/// assert_ne!(before::Counts::FINGERPRINT, after::Counts::FINGERPRINT);
/// assert_eq!(<Vec<u32>>::FINGERPRINT, <Vec<u32>>::FINGERPRINT);
/// ```
pub trait Layout {
    /// What stands for the layout: types of the same layout have the same.
    const FINGERPRINT: Fingerprint;
}

/// What stands for a layout.
///
/// ```
/// use ekiden::Layout;
///
/// assert_ne!(u32::FINGERPRINT.number(), i32::FINGERPRINT.number());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of no fields; FNV-1a begins so.
    pub(crate) const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    /// As a number, never 0.
    pub const fn number(self) -> u64 {
        if self.0 == 0 { 1 } else { self.0 }
    }

    /// The layout of a type of this name, with the layout of the framework and no fields yet. For `#[derive(Layout)]`.
    #[doc(hidden)]
    pub const fn of<T>(name: &str) -> Self {
        Self::EMPTY.text(env!("EKIDEN_FRAMEWORK")).text(name).word(size_of::<T>()).word(align_of::<T>())
    }

    /// With one more field. For `#[derive(Layout)]`.
    #[doc(hidden)]
    pub const fn field(self, name: &str, offset: usize, layout: Self) -> Self {
        self.text(name).word(offset).word(layout.0 as usize)
    }

    /// With one more parameter.
    const fn with(self, layout: Self) -> Self {
        self.word(layout.0 as usize)
    }

    pub(crate) const fn text(self, text: &str) -> Self {
        let (mut hash, bytes) = (self, text.as_bytes());
        let mut i = 0;
        while i < bytes.len() {
            hash = hash.byte(bytes[i]);
            i += 1;
        }
        // Tells "ab" and "c" from "a" and "bc".
        hash.word(bytes.len())
    }

    pub(crate) const fn word(self, word: usize) -> Self {
        let (mut hash, bytes) = (self, (word as u64).to_le_bytes());
        let mut i = 0;
        while i < bytes.len() {
            hash = hash.byte(bytes[i]);
            i += 1;
        }
        hash
    }

    const fn byte(self, byte: u8) -> Self {
        Self((self.0 ^ byte as u64).wrapping_mul(0x0100_0000_01b3))
    }
}

/// Asks of any type whether it has a fingerprint, for `#[policy]`: a constant of the type itself goes before one of a trait.
#[doc(hidden)]
pub struct Of<T>(PhantomData<T>);

impl<T: Layout> Of<T> {
    /// It has one.
    pub const FINGERPRINT: Option<Fingerprint> = Some(T::FINGERPRINT);
}

/// It has none.
#[doc(hidden)]
pub trait Unknown {
    /// None.
    const FINGERPRINT: Option<Fingerprint> = None;
}

impl<T> Unknown for Of<T> {}

macro_rules! plain {
    ($($type:ty)*) => {$(
        impl Layout for $type {
            const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>(stringify!($type));
        }
    )*};
}

plain! {
    u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize bool char
    AtomicBool AtomicU8 AtomicU16 AtomicU32 AtomicU64 AtomicUsize AtomicI32 AtomicI64
    String TaskId CpuMask Group Topology Cpu
}

macro_rules! containers {
    ($($name:ident)*) => {$(
        impl<T: Layout> Layout for $name<T> {
            const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>(stringify!($name)).with(T::FINGERPRINT);
        }
    )*};
}

containers! { Option Vec VecDeque Box Arc PerCpu PerLlc PerNode PerTask SpinLock }

impl<T: Word + Layout> Layout for Shared<T> {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("Shared").with(T::FINGERPRINT);
}

impl<K: Layout, V: Layout> Layout for BTreeMap<K, V> {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("BTreeMap").with(K::FINGERPRINT).with(V::FINGERPRINT);
}

// A layout does not say whose tokens they are.

impl<P> Layout for Schedulable<P> {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("Schedulable");
}

impl<P> Layout for FifoQueue<P> {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("FifoQueue");
}

impl<P, K: Layout> Layout for OrderedQueue<P, K> {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("OrderedQueue").with(K::FINGERPRINT);
}

impl<P, K: Layout> Layout for TreeQueue<P, K> {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("TreeQueue").with(K::FINGERPRINT);
}

impl Layout for () {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("()");
}

impl<T> Layout for PhantomData<T> {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("PhantomData");
}

impl<T: Layout, const N: usize> Layout for [T; N] {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("array").with(T::FINGERPRINT);
}

impl<T: Layout> Layout for Box<[T]> {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("Box of slice").with(T::FINGERPRINT);
}

impl<A: Layout, B: Layout> Layout for (A, B) {
    const FINGERPRINT: Fingerprint = Fingerprint::of::<Self>("pair").with(A::FINGERPRINT).with(B::FINGERPRINT);
}
