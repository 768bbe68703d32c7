//! What types the records of a queue may have, and how two programs find out that they mean the same by one.

use core::fmt;

use zerocopy::{Immutable, KnownLayout, TryFromBytes};

/// A type that may be shared with a program: nothing but its bytes, which mean the same on both sides.
///
/// Put `#[repr(C)]` and `#[derive(Plain)]` on a structure, beside zerocopy's `TryFromBytes`, `KnownLayout` and
/// `Immutable`, and `IntoBytes` where values are written. Fields are numbers, `bool`, arrays, and such structures; an
/// `enum` without fields has `#[repr(u8)]` or the like.
///
/// ```
/// use ekiden_hints::Plain;
///
/// fn can_be_shared<T: Plain>() {}
///
/// can_be_shared::<[u32; 3]>();
/// ```
pub trait Plain: TryFromBytes + KnownLayout + Immutable + Sized {
    // For hosts and for programs that open a queue; who derives the trait need not know what it is.
    /// How it looks. Both sides compare the fingerprints before either reads anything.
    #[doc(hidden)]
    const SHAPE: Shape;
}

/// How a type looks: enough to declare it in C, and to compare it.
///
/// ```
/// use ekiden_hints::Plain;
///
/// assert_ne!(u32::SHAPE.fingerprint(), i32::SHAPE.fingerprint());
/// assert_eq!((u32::SHAPE.name, <[u32; 3]>::SHAPE.bytes), ("u32", 12));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// Its size in bytes.
    pub bytes: usize,
    /// What its address is a multiple of.
    pub align: usize,
    /// What it is.
    pub kind: Kind,
}

/// What a type is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A number, whose name says which: "u32".
    Number,
    /// Some of the same, one after the other.
    Array(&'static Shape, usize),
    /// A structure.
    Struct(&'static [Field]),
    /// Names of numbers.
    Enum(&'static [(&'static str, i64)]),
}

/// A field of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Bytes before it.
    pub offset: usize,
    /// What it is.
    pub shape: &'static Shape,
}

/// FNV-1a.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

const fn byte(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3)
}

const fn word(mut hash: u64, word: u64) -> u64 {
    let bytes = word.to_le_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = byte(hash, bytes[i]);
        i += 1;
    }
    hash
}

const fn text(mut hash: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = byte(hash, bytes[i]);
        i += 1;
    }
    word(hash, bytes.len() as u64)
}

impl Shape {
    /// The shape of a number of this type.
    pub const fn number<T>(name: &'static str) -> Self {
        Self { name, bytes: size_of::<T>(), align: align_of::<T>(), kind: Kind::Number }
    }

    /// Equal for types with equal names, and equal names, types and offsets of fields. Never 0.
    ///
    /// It does not cover what a number stands for: a field that gets another meaning needs another name.
    pub const fn fingerprint(&self) -> u64 {
        let hash = self.hash(BASIS);
        if hash == 0 { 1 } else { hash }
    }

    const fn hash(&self, mut hash: u64) -> u64 {
        hash = word(word(text(hash, self.name), self.bytes as u64), self.align as u64);
        match self.kind {
            Kind::Number => hash,
            Kind::Array(of, times) => of.hash(word(hash, times as u64)),
            Kind::Struct(fields) => {
                let mut i = 0;
                while i < fields.len() {
                    hash = word(text(hash, fields[i].name), fields[i].offset as u64);
                    hash = fields[i].shape.hash(hash);
                    i += 1;
                }
                hash
            }
            Kind::Enum(names) => {
                let mut i = 0;
                while i < names.len() {
                    hash = word(text(hash, names[i].0), names[i].1 as u64);
                    i += 1;
                }
                hash
            }
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Number => f.write_str(self.name),
            Kind::Array(of, times) => write!(f, "[{of}; {times}]"),
            Kind::Struct(fields) => {
                write!(f, "{} {{", self.name)?;
                for (i, field) in fields.iter().enumerate() {
                    write!(f, "{} {}: {}", if i > 0 { "," } else { "" }, field.name, field.shape)?;
                }
                f.write_str(" }")
            }
            Kind::Enum(names) => {
                write!(f, "{} {{", self.name)?;
                for (i, (name, number)) in names.iter().enumerate() {
                    write!(f, "{} {name} = {number}", if i > 0 { "," } else { "" })?;
                }
                f.write_str(" }")
            }
        }
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Plain for $type {
            const SHAPE: Shape = Shape::number::<Self>(stringify!($type));
        }
    )*};
}

numbers! { u8 u16 u32 u64 i8 i16 i32 i64 bool }

/// Nothing is said.
impl Plain for () {
    const SHAPE: Shape = Shape { name: "()", bytes: 0, align: 1, kind: Kind::Struct(&[]) };
}

impl<T: Plain, const N: usize> Plain for [T; N] {
    const SHAPE: Shape =
        Shape { name: "[]", bytes: size_of::<Self>(), align: align_of::<Self>(), kind: Kind::Array(&T::SHAPE, N) };
}
