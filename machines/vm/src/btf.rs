//! Reader of BTF, the kernel's description of its own types: just functions with their parameters, and structures with their members.
//!
//! Corrupt input gives an error, never a panic. Format: Documentation/bpf/btf.rst in the kernel's sources.

use object::{Object, ObjectSection};
use std::{collections::BTreeMap, ffi::CStr};

const MAGIC: u16 = 0xeb9f;

const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_DATASEC: u32 = 15;
const KIND_ENUM64: u32 = 19;

/// Names of functions with those of their parameters, and of structures with those of their members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Btf {
    pub(crate) functions: BTreeMap<String, Vec<String>>,
    pub(crate) structures: BTreeMap<String, Vec<String>>,
}

impl Btf {
    /// Reads either an ELF file with a `.BTF` section or, as in `/sys/kernel/btf/vmlinux`, the section alone.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, String> {
        if file.get(..2) == Some(&MAGIC.to_le_bytes()) {
            return Self::parse_section(file);
        }
        let elf = object::File::parse(file).map_err(|error| error.to_string())?;
        let section = elf.section_by_name(".BTF").ok_or("it has no .BTF section")?;
        let section = section.data().map_err(|error| error.to_string())?;
        Self::parse_section(section)
    }

    fn parse_section(bytes: &[u8]) -> Result<Self, String> {
        let mut header = Words(bytes);
        if header.next()? & 0xffff != u32::from(MAGIC) {
            return Err("it does not begin with BTF's magic number, in this machine's byte order".into());
        }
        let header_len = header.next()?;
        let types = part(bytes, header_len, header.next()?, header.next()?)?;
        let strings = part(bytes, header_len, header.next()?, header.next()?)?;
        let mut prototypes = BTreeMap::new();
        let mut functions = Vec::new();
        let mut btf = Self::default();
        let mut types = Words(types);
        let mut id = 0_u32;
        while !types.0.is_empty() {
            id = id.checked_add(1).ok_or("it has too many types")?;
            let (name, info, size_or_type) = (types.next()?, types.next()?, types.next()?);
            let (kind, count) = (info >> 24 & 0x1f, info & 0xffff);
            match kind {
                KIND_FUNC => functions.push((string(strings, name)?, size_or_type)),
                KIND_FUNC_PROTO => {
                    let parameters = types.names(strings, count, 1)?;
                    prototypes.insert(id, parameters);
                }
                KIND_STRUCT => {
                    let members = types.names(strings, count, 2)?;
                    btf.structures.insert(string(strings, name)?, members);
                }
                KIND_UNION | KIND_DATASEC | KIND_ENUM64 => types.skip(3 * u64::from(count))?,
                KIND_ENUM => types.skip(2 * u64::from(count))?,
                KIND_ARRAY => types.skip(3)?,
                // INT, VAR, DECL_TAG.
                1 | 14 | 17 => types.skip(1)?,
                // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FLOAT, TYPE_TAG.
                2 | 7..=11 | 16 | 18 => {}
                _ => return Err(format!("type {id} is of the unknown kind {kind}")),
            }
        }
        for (name, prototype) in functions {
            if let Some(parameters) = prototypes.get(&prototype) {
                btf.functions.insert(name, parameters.clone());
            }
        }
        Ok(btf)
    }
}

/// Little-endian 32-bit words that are taken one after the other.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Result<u32, String> {
        let (word, rest) = self.0.split_first_chunk().ok_or("it ends in the middle of a type")?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*word))
    }

    fn skip(&mut self, words: u64) -> Result<(), String> {
        let bytes = usize::try_from(words * 4).map_err(|error| error.to_string())?;
        self.0 = self.0.get(bytes..).ok_or("it ends in the middle of a type")?;
        Ok(())
    }

    /// The names of `count` members, each a name and `more` words.
    fn names(&mut self, strings: &[u8], count: u32, more: u64) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(string(strings, self.next()?)?);
            self.skip(more)?;
        }
        Ok(names)
    }
}

fn part(bytes: &[u8], header_len: u32, offset: u32, len: u32) -> Result<&[u8], String> {
    let start = u64::from(header_len) + u64::from(offset);
    let range = usize::try_from(start).ok().zip(usize::try_from(start + u64::from(len)).ok());
    range.and_then(|(start, end)| bytes.get(start..end)).ok_or_else(|| "its header points outside of it".to_owned())
}

fn string(strings: &[u8], offset: u32) -> Result<String, String> {
    let tail = usize::try_from(offset).ok().and_then(|offset| strings.get(offset..));
    let tail = tail.ok_or("a name is outside of its strings")?;
    // As memchr, which is fast in builds for tests, too.
    let name = CStr::from_bytes_until_nul(tail).map_or(tail, CStr::to_bytes);
    Ok(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes the BTF of functions with their parameters and structures with their members.
    pub(crate) fn write(functions: &[(&str, &[&str])], structures: &[(&str, &[&str])]) -> Vec<u8> {
        let mut strings = vec![0];
        let mut types: Vec<u32> = Vec::new();
        let mut intern = |name: &str| {
            let offset = strings.len() as u32;
            strings.extend(name.bytes().chain([0]));
            offset
        };
        let mut id = 0;
        for (name, parameters) in functions {
            types.extend([0, KIND_FUNC_PROTO << 24 | parameters.len() as u32, 0]);
            for parameter in *parameters {
                types.extend([intern(parameter), 0]);
            }
            types.extend([intern(name), KIND_FUNC << 24, id + 1]);
            id += 2;
        }
        for (name, members) in structures {
            types.extend([intern(name), KIND_STRUCT << 24 | members.len() as u32, 8]);
            for member in *members {
                types.extend([intern(member), 0, 0]);
            }
        }
        let types_len = types.len() as u32 * 4;
        let header = [u32::from(MAGIC) | 1 << 16, 24, 0, types_len, types_len, strings.len() as u32];
        let words = header.iter().chain(&types).flat_map(|word| word.to_le_bytes());
        words.chain(strings).collect()
    }

    #[test]
    fn functions_and_structures_are_read_back() {
        let bytes = write(&[("f", &["a", "b"]), ("g", &[])], &[("s", &["x", "y"])]);
        expect_test::expect![[r#"
            Btf {
                functions: {
                    "f": [
                        "a",
                        "b",
                    ],
                    "g": [],
                },
                structures: {
                    "s": [
                        "x",
                        "y",
                    ],
                },
            }
        "#]]
        .assert_debug_eq(&Btf::parse(&bytes).unwrap());
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Btf::parse(&bytes);
            let mut with_magic = MAGIC.to_le_bytes().to_vec();
            with_magic.extend(bytes);
            let _ = Btf::parse(&with_magic);
        }

        #[test]
        fn damaged_btf_never_panics(at in 0_usize..150, value in any::<u8>(), cut in 0_usize..150) {
            let mut bytes = write(&[("f", &["a", "b"]), ("g", &[])], &[("s", &["x", "y"])]);
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = Btf::parse(&bytes);
            bytes.truncate(cut);
            let _ = Btf::parse(&bytes);
        }
    }
}
