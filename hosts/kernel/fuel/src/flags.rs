//! Whether a program still needs the processor's flags somewhere, so that they have to be kept where fuel is taken.

use super::line::{Line, symbol};
use std::collections::{HashMap, HashSet};

/// What an instruction does to the flags, as the compiler sees them: all of them in one.
#[derive(PartialEq, Eq)]
enum OnFlags {
    Sets,
    Leaves,
    /// Or we do not know.
    Reads,
}

fn on_flags(name: &str) -> OnFlags {
    const SETS: &[&str] = &[
        "add", "sub", "cmp", "test", "and", "or", "xor", "neg", "inc", "dec", "shl", "shr", "sar", "sal", "imul",
        "mul", "div", "idiv", "xadd", "cmpxchg", "bsf", "bsr", "bt", "bts", "btr", "btc",
    ];
    const LEAVES: &[&str] =
        &["mov", "lea", "push", "pop", "xchg", "not", "nop", "bswap", "pause", "movabs", "movs", "stos"];
    const LEAVES_WHOLE: &[&str] =
        &["cltq", "cltd", "cqto", "cwtl", "cbtw", "rdtsc", "mfence", "lfence", "sfence", "endbr64", "nopw", "nopl"];
    // With the letter for the size of the operands or without it.
    let is_one_of = |list: &[&str]| {
        list.contains(&name) || (name.ends_with(['b', 'w', 'l', 'q']) && list.contains(&&name[..name.len() - 1]))
    };
    if is_one_of(SETS) {
        OnFlags::Sets
    } else if is_one_of(LEAVES) || LEAVES_WHOLE.contains(&name) || name.starts_with("movz") || name.starts_with("movs")
    {
        OnFlags::Leaves
    } else {
        OnFlags::Reads
    }
}

/// Whether the flags are dead before line `at` of a function: overwritten before they are read.
pub(super) fn flags_are_free(lines: &[&str], labels: &HashMap<&str, usize>, mut at: usize) -> bool {
    let mut been = HashSet::new();
    while at < lines.len() && been.insert(at) {
        let line = Line::read(lines[at]);
        at += 1;
        match line {
            Line::Code("call" | "callq" | "ret" | "retq" | "ud2" | "int3", _) => return true,
            Line::Code("jmp" | "jmpq", operands) => match labels.get(symbol(operands)) {
                Some(target) => at = *target,
                None => return !operands.starts_with('*'),
            },
            Line::Code(name, _) => match on_flags(name) {
                OnFlags::Sets => return true,
                OnFlags::Leaves => {}
                OnFlags::Reads => return false,
            },
            _ => {}
        }
    }
    // A loop, or the end of the function, in which nothing reads them.
    true
}
