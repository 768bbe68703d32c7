//! How much stack the functions of a program need, and which of them have to check that there is as much.

use super::{
    SLACK, SPENT,
    program::{Function, Program},
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// How much of it an entry point of the policy may need without a check.
const ENTRY: usize = 4 * 1024;
/// A function that needs more than this, with its callees, checks.
const LARGE: usize = 2 * 1024;
/// How the name of the function ends that every panic comes to.
const PANIC: &str = "rust_begin_unwind";

impl<'a> Program<'a> {
    /// The functions that check the stack where they begin, and what they need of it.
    pub(super) fn looks(&self) -> BTreeMap<&'a str, usize> {
        let by_name: HashMap<&str, &Function<'a>> =
            self.functions.iter().map(|function| (function.name, function)).collect();
        // All functions can panic: it is enough if the panic handler checks.
        let is_panic = |function: &&Function<'a>| function.name.ends_with(PANIC);
        let mut looks: HashSet<&'a str> =
            self.functions.iter().filter(is_panic).map(|function| function.name).collect();
        // At the end there is no stack to look for.
        let last = reach(&by_name, &looks, [SPENT]);
        // A recursion through an indirect call comes through a function whose address is taken.
        for function in &self.functions {
            let after = reach(&by_name, &looks, function.calls.iter().copied());
            let unknown = function.calls_unknown || after.iter().any(|name| by_name[name].calls_unknown);
            if unknown && self.taken.contains(function.name) && !last.contains(function.name) {
                looks.insert(function.name);
            }
        }
        for function in &self.functions {
            if reach(&by_name, &looks, function.calls.iter().copied()).contains(function.name) {
                looks.insert(function.name);
            }
        }
        let mut needs = Needs { program: self, by_name, last, looks, known: HashMap::new() };
        // First of the functions that may be called indirectly.
        needs.known.insert(UNKNOWN, 0);
        let unknown = self.taken.iter().map(|name| needs.of_call(name)).max().unwrap_or(SLACK);
        needs.known.clear();
        needs.known.insert(UNKNOWN, unknown);
        for function in &self.functions {
            needs.of_call(function.name);
        }
        let Needs { looks, known, .. } = needs;
        looks.into_iter().map(|name| (name, known[name])).collect()
    }
}

/// These and everything that can come after them, up to those that look.
fn reach<'a>(
    by_name: &HashMap<&str, &Function<'a>>,
    looks: &HashSet<&'a str>,
    from: impl IntoIterator<Item = &'a str>,
) -> HashSet<&'a str> {
    let mut todo: Vec<&str> = from.into_iter().collect();
    let mut seen = HashSet::new();
    while let Some(name) = todo.pop() {
        let Some(function) = by_name.get(name) else { continue };
        if !looks.contains(function.name) && seen.insert(function.name) {
            todo.extend(function.calls.iter().copied());
        }
    }
    seen
}

/// Stands for all functions that may be called indirectly.
const UNKNOWN: &str = "";

struct Needs<'p, 'a> {
    program: &'p Program<'a>,
    by_name: HashMap<&'p str, &'p Function<'a>>,
    last: HashSet<&'a str>,
    looks: HashSet<&'a str>,
    /// What functions need, with all that come after them up to those that look.
    known: HashMap<&'p str, usize>,
}

impl<'p, 'a: 'p> Needs<'p, 'a> {
    /// What a call of this function takes that has not been looked at.
    fn of_call(&mut self, name: &'p str) -> usize {
        if !self.known.contains_key(name) {
            let Some(function) = self.by_name.get(name).copied() else { return SLACK };
            // A function that checks ends the search: every cycle has one.
            let looked = self.looks.contains(name);
            if looked {
                self.known.insert(name, 0);
            }
            let unknown = if function.calls_unknown { self.known[UNKNOWN] } else { 0 };
            let after = function.calls.iter().map(|called| self.of_call(called)).max().unwrap_or(0);
            let need = function.frame + after.max(unknown).max(SLACK);
            self.known.insert(name, need);
            let allowed = if self.program.entries.contains(name) { ENTRY } else { LARGE };
            if need > allowed && !self.last.contains(name) {
                self.looks.insert(function.name);
            }
        }
        if self.looks.contains(name) { SLACK } else { self.known[name] }
    }
}
