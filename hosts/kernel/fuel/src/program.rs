//! A policy's program as the compiler prints it: its functions, and whether all of it is understood.

use super::{
    NotUnderstood,
    line::{Line, is_indirect, is_name, is_return, names, stands_alone, word},
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ops::Range,
};

/// The name of the table through which a policy is called; what it names is called from outside only.
const TABLE: &str = "ekiden_policy_table";
const OUTSIDE: &str = "an instruction outside of functions";

pub(super) struct Program<'a> {
    pub(super) lines: Vec<&'a str>,
    pub(super) functions: Vec<Function<'a>>,
    /// The names of source files, by their numbers.
    pub(super) files: HashMap<u32, String>,
    /// The names that are said to be functions, and those that stand for another one.
    pub(super) types: HashSet<&'a str>,
    pub(super) aliases: HashMap<&'a str, &'a str>,
    /// Functions that the table names, and those whose address is anywhere else.
    pub(super) entries: HashSet<&'a str>,
    pub(super) taken: HashSet<&'a str>,
}

pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    /// From the line with its label to that before the one that says its size.
    pub(super) begin: usize,
    pub(super) end: usize,
    /// Bytes of its frame, with the return address.
    pub(super) frame: usize,
    /// Functions of this program that it calls, or jumps to at its end.
    pub(super) calls: BTreeSet<&'a str>,
    /// Whether it has indirect calls.
    pub(super) calls_unknown: bool,
}

impl<'a> Program<'a> {
    pub(super) fn read(assembly: &'a str) -> Self {
        let lines: Vec<&str> = assembly.lines().collect();
        let mut types = HashSet::new();
        let mut files = HashMap::new();
        let mut aliases = HashMap::new();
        for line in &lines {
            match Line::read(line) {
                Line::Directive("type", rest) => {
                    if let Some((name, "@function")) = rest.split_once(',').map(|(name, kind)| (name, kind.trim())) {
                        types.insert(name.trim_matches('"'));
                    }
                }
                Line::Directive("file", rest) => files.extend(source_file(rest)),
                Line::Directive("set", rest) => {
                    aliases.extend(rest.split_once(',').map(|(name, of)| (name, of.trim())));
                }
                _ => {}
            }
        }
        let mut functions = Vec::new();
        let mut at = 0;
        while at < lines.len() {
            if let Line::Label(name) = Line::read(lines[at]) {
                if types.contains(name) {
                    let end = (at..lines.len())
                        .find(|line| matches!(Line::read(lines[*line]), Line::Directive("size", of) if of.trim_matches('"').starts_with(name)))
                        .unwrap_or(lines.len());
                    functions.push(Function::read(name, at, end, &lines, &types, &aliases));
                    at = end;
                }
            }
            at += 1;
        }
        let (entries, taken) = (HashSet::new(), HashSet::new());
        let mut program = Self { lines, functions, files, types, aliases, entries, taken };
        program.find_taken();
        program
    }

    /// Whether all of it is understood: code stands in functions only, one instruction in each line, and a jump goes to a label of its own
    /// function, or to the beginning of another one.
    pub(super) fn check(&self) -> Result<(), NotUnderstood> {
        let wrong = |at: usize, why| {
            Err(NotUnderstood { line: at + 1, text: self.lines.get(at).unwrap_or(&"").trim().to_owned(), why })
        };
        if self.functions.is_empty() {
            return wrong(0, "there is no function");
        }
        let labels = |lines: Range<usize>| {
            let label = |line: &&'a str| if let Line::Label(name) = Line::read(line) { Some(name) } else { None };
            self.lines[lines].iter().filter_map(label).collect::<HashSet<_>>()
        };
        let everywhere = labels(0..self.lines.len());
        // From outside, or a function of this program.
        let begins_function = |to: &str| {
            let to = self.aliases.get(to).copied().unwrap_or(to);
            is_name(to) && (self.types.contains(to) || !everywhere.contains(to))
        };
        // Kernels have room before each function.
        let is_outside = |at: &usize| Line::read(self.lines[*at]).code().is_some_and(|(name, _)| name != "nop");
        let mut next = 0;
        for function in &self.functions {
            if let Some(at) = (next..function.begin).find(is_outside) {
                return wrong(at, OUTSIDE);
            }
            if function.end == self.lines.len() {
                return wrong(function.begin, "a function whose end is not said");
            }
            let own = labels(function.begin..function.end);
            for at in function.begin..function.end {
                let line = Line::read(self.lines[at]);
                if let Line::Directive("byte" | "short" | "long" | "quad" | "ascii" | "asciz" | "zero" | "section", _) =
                    line
                {
                    return wrong(at, "data, or another section, in a function");
                }
                if !stands_alone(self.lines[at]) {
                    return wrong(at, "more than one instruction in a line");
                }
                let Some(to) = line.goes().filter(|to| !is_indirect(to)) else { continue };
                let is_known = begins_function(to) || line.jump().is_some() && own.contains(to);
                if !is_known {
                    return wrong(at, "nothing is known of where it goes");
                }
            }
            next = function.end;
        }
        (next..self.lines.len()).find(is_outside).map_or(Ok(()), |at| wrong(at, OUTSIDE))
    }

    fn find_taken(&mut self) {
        let (types, aliases) = (&self.types, &self.aliases);
        let mut object = "";
        for line in &self.lines {
            let line = Line::read(line);
            let text = match line {
                Line::Label(name) => {
                    object = name;
                    continue;
                }
                Line::Directive("quad" | "long", text) => text,
                Line::Code(_, operands) if line.goes().is_none_or(is_indirect) => operands,
                _ => continue,
            };
            let known = names(text).map(|name| aliases.get(name).copied().unwrap_or(name));
            let into = if object == TABLE { &mut self.entries } else { &mut self.taken };
            into.extend(known.filter(|name| types.contains(name)));
        }
    }
}

impl<'a> Function<'a> {
    fn read(
        name: &'a str,
        begin: usize,
        end: usize,
        lines: &[&'a str],
        types: &HashSet<&'a str>,
        aliases: &HashMap<&'a str, &'a str>,
    ) -> Self {
        let mut function = Self { name, begin, end, frame: 0, calls: BTreeSet::new(), calls_unknown: false };
        let (mut pushed, mut told) = (8, 0);
        for line in &lines[begin..end] {
            let line = Line::read(line);
            match line {
                Line::Directive("cfi_def_cfa_offset", bytes) => told = told.max(bytes.parse().unwrap_or(0)),
                Line::Code(name, _) if name.starts_with("push") => pushed += 8,
                Line::Code(name, operands) => pushed += taken_from_stack(name, operands),
                _ => {}
            }
            if let Some(to) = line.goes().filter(|to| !is_return(to)) {
                let to = aliases.get(to).copied().unwrap_or(to);
                function.calls_unknown |= is_indirect(to);
                function.calls.extend(types.get(to));
            }
        }
        function.frame = pushed.max(told);
        function
    }
}

/// Bytes that an instruction takes from the stack for a frame.
pub(super) fn taken_from_stack(name: &str, operands: &str) -> usize {
    let Some((amount, to)) = operands.rsplit_once(", ") else { return 0 };
    let number = |text: &str| text.parse::<i64>().ok();
    let bytes = match (name, to) {
        ("subq", "%rsp") => amount.strip_prefix('$').map_or(Some(i64::from(u32::MAX)), number),
        ("addq", "%rsp") => amount.strip_prefix("$-").and_then(number),
        ("andq", "%rsp") => amount.strip_prefix("$-").and_then(number),
        // How the end of a large frame is found, before its pages are touched.
        ("leaq", _) => amount.strip_prefix('-').and_then(|amount| number(amount.strip_suffix("(%rsp)")?)),
        _ => None,
    };
    bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(0)
}

/// Number and name in `.file 3 "directory" "name"`.
pub(super) fn source_file(rest: &str) -> Option<(u32, String)> {
    let (number, names) = word(rest);
    let mut names = names.split('"').skip(1).step_by(2);
    let first = names.next()?;
    Some((number.parse().ok()?, names.next().map_or(first.to_owned(), |name| format!("{first}/{name}"))))
}
