//! Puts fuel and a limit of the stack into a policy's program, as assembly text, so that no call into it lasts for ever.
//!
//! Every way round takes one unit from a counter of this CPU, which each call finds full: at each jump that goes back, and where a function begins that can come to call itself, or to jump to itself by way of others. Such a
//! function also looks how much of the stack its call has used. What it and the functions after it need at most, up to the
//! next one that looks, is known here. So a call that neither loops nor recurses pays nothing.
//!
//! When there is no fuel or no stack left, code apart from the function calls `ekiden_spent` with a text that names the
//! place (hosts/kernel/policy/src/lib.rs). It is the compiler's output for the whole program that is changed, its library
//! included: with `lto = "fat"` that is one file.

mod unfit;

pub use unfit::Unfit;
pub(crate) use unfit::unfit;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt::Write,
    ops::Range,
};

/// How much stack a call may use, in bytes, from where it was entered, sometimes by way of the engine. The least that kernels
/// have is 16 KiB for everything, and what a policy asks and how it is left comes on top.
const STACK: usize = 6 * 1024;
/// What of it a policy may need where it is entered without a look.
const ENTRY: usize = 4 * 1024;
/// Whoever needs more than this, in any way, looks.
const LARGE: usize = 2 * 1024;
/// What is not in the sizes of frames: saved flags, the return addresses of functions that are not ours.
const SLACK: usize = 32;

/// The name of the table through which a policy is called; what it names is called from outside only.
const TABLE: &str = "ekiden_policy_table";
/// How the name of the function ends that every panic comes to.
const PANIC: &str = "rust_begin_unwind";
/// Functions of the kernel's whose third argument says how many bytes they go through. They take fuel for them.
const BY_LENGTH: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "bcmp"];
/// So many bytes, as a power of two, for one unit.
const BYTES_PER_UNIT: u32 = 5;
/// What an instruction takes that has a CPU wait for a moment, of 40 to 140 cycles, as turns of a loop. Emulators let other CPUs run meanwhile,
/// for milliseconds.
const PAUSE: u32 = 64;
/// Who is called at the end.
const SPENT: &str = "ekiden_spent";

const OUTSIDE: &str = "an instruction outside of functions";

/// Assembly that is not understood: it may hold a way round that takes no fuel.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} of it, `{text}`: {why}")]
pub struct NotUnderstood {
    line: usize,
    text: String,
    why: &'static str,
}

/// What the compiler printed, with fuel and limits in it.
pub(crate) fn limit(assembly: &str) -> Result<String, NotUnderstood> {
    let program = Program::read(assembly);
    program.check()?;
    let looks = program.looks();
    let mut writer =
        Writer { files: &program.files, texts: BTreeMap::new(), labels: 0, out: String::new(), apart: String::new() };
    let mut next = 0;
    for function in &program.functions {
        for line in &program.lines[next..function.begin] {
            writer.line(line);
        }
        writer.function(function, &program.lines, looks.get(function.name).copied());
        next = function.end;
    }
    for line in &program.lines[next..] {
        writer.line(line);
    }
    Ok(writer.finish())
}

/// A line, without its comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Label(&'a str),
    Directive(&'a str, &'a str),
    Code(&'a str, &'a str),
    Nothing,
}

impl<'a> Line<'a> {
    fn read(text: &'a str) -> Self {
        let text = text.trim_start();
        if let Some(directive) = text.strip_prefix('.').filter(|_| !text.starts_with(".L")) {
            let (name, rest) = word(directive);
            return Self::Directive(name, rest);
        }
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            return Self::Nothing;
        }
        if let Some(label) = text.strip_suffix(':') {
            return Self::Label(label.trim_matches('"'));
        }
        let (mut name, mut rest) = word(text);
        // A prefix belongs to the instruction after it, which some of them share a word with.
        while let "lock" | "rep" | "repe" | "repne" | "repz" | "repnz" | "notrack" | "bnd" = name {
            (name, rest) = word(rest);
        }
        Self::Code(name.rsplit(';').next().unwrap_or(name), rest)
    }

    fn code(self) -> Option<(&'a str, &'a str)> {
        if let Self::Code(name, operands) = self { Some((name, operands)) } else { None }
    }

    /// Where a jump goes, and its name.
    fn jump(self) -> Option<(&'a str, &'a str)> {
        let (name, operands) = self.code()?;
        (name.starts_with('j') || name.starts_with("loop")).then(|| (symbol(operands), name))
    }

    /// Where a call or a jump goes.
    fn goes(self) -> Option<&'a str> {
        match self.code()? {
            ("call" | "callq", operands) => Some(symbol(operands)),
            _ => self.jump().map(|(to, _)| to),
        }
    }
}

fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    (word, rest.trim())
}

fn symbol(operand: &str) -> &str {
    operand.trim_end_matches("@PLT").trim_matches('"')
}

/// A return, where kernels want it by way of a function of theirs.
fn is_return(to: &str) -> bool {
    to == "__x86_return_thunk"
}

/// A call or jump to somewhere that is known at run time only.
fn is_indirect(to: &str) -> bool {
    to.starts_with('*') || to.starts_with("__x86_indirect_thunk")
}

/// Whether it may be the name of a function: neither a label of the compiler's, nor a number, nor a sum.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '$'))
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$'))
}

/// Whether there is nothing in a line besides a label, a directive or an instruction. A prefix may come before a semicolon.
fn stands_alone(text: &str) -> bool {
    match Line::read(text) {
        Line::Code(name, operands) => {
            let text = text.split('#').next().unwrap_or_default().trim();
            let rest = text.strip_prefix("rep;").or(text.strip_prefix("lock;")).unwrap_or(text);
            !rest.contains(';') && !name.contains(':') && !operands.contains(": ")
        }
        Line::Directive(_, rest) => !rest.contains(';') || rest.contains('"'),
        Line::Label(name) => !name.contains([';', ':']),
        Line::Nothing => true,
    }
}

/// The size of what an instruction goes through again and again, as a power of two; none if it is another one.
fn repeats(line: &str) -> Option<u32> {
    let line = line.trim_start();
    let begins =
        ["rep;", "rep\t", "rep ", "repe", "repz", "repne", "repnz"].iter().any(|prefix| line.starts_with(prefix));
    let (name, _) = Line::read(line).code().filter(|_| begins)?;
    // Others have the prefix for another reason: `rep bsfq` counts zeros.
    let size = ["movs", "stos", "cmps", "scas", "lods"].iter().find_map(|string| name.strip_prefix(string))?;
    ["b", "w", "l", "q"].iter().position(|known| *known == size).map(|size| size as u32)
}

/// The parts of a text that may be names.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')))
        .map(|name| name.trim_matches('$'))
}

struct Program<'a> {
    lines: Vec<&'a str>,
    functions: Vec<Function<'a>>,
    /// The names of source files, by their numbers.
    files: HashMap<u32, String>,
    /// The names that are said to be functions, and those that stand for another one.
    types: HashSet<&'a str>,
    aliases: HashMap<&'a str, &'a str>,
    /// Functions that the table names, and those whose address is anywhere else.
    entries: HashSet<&'a str>,
    taken: HashSet<&'a str>,
}

struct Function<'a> {
    name: &'a str,
    /// From the line with its label to that before the one that says its size.
    begin: usize,
    end: usize,
    /// Bytes of its frame, with the return address.
    frame: usize,
    /// Functions of this program that it calls or goes on with.
    calls: BTreeSet<&'a str>,
    calls_anybody: bool,
}

impl<'a> Program<'a> {
    fn read(assembly: &'a str) -> Self {
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
    fn check(&self) -> Result<(), NotUnderstood> {
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

    /// The functions that look at the stack where they begin, and what they need of it.
    fn looks(&self) -> BTreeMap<&'a str, usize> {
        let by_name: HashMap<&str, &Function<'a>> =
            self.functions.iter().map(|function| (function.name, function)).collect();
        // A panic is on everybody's way to the code that describes it: it is enough if it looks itself.
        let is_panic = |function: &&Function<'a>| function.name.ends_with(PANIC);
        let mut looks: HashSet<&'a str> =
            self.functions.iter().filter(is_panic).map(|function| function.name).collect();
        // At the end there is no stack to look for.
        let last = reach(&by_name, &looks, [SPENT]);
        // Every way round by way of somebody unknown comes through one of those whose address is known.
        for function in &self.functions {
            let after = reach(&by_name, &looks, function.calls.iter().copied());
            let anybody = function.calls_anybody || after.iter().any(|name| by_name[name].calls_anybody);
            if anybody && self.taken.contains(function.name) && !last.contains(function.name) {
                looks.insert(function.name);
            }
        }
        for function in &self.functions {
            if reach(&by_name, &looks, function.calls.iter().copied()).contains(function.name) {
                looks.insert(function.name);
            }
        }
        let mut needs = Needs { program: self, by_name, last, looks, known: HashMap::new() };
        // First of those that somebody may call without being named.
        needs.known.insert(ANYBODY, 0);
        let anybody = self.taken.iter().map(|name| needs.of_call(name)).max().unwrap_or(SLACK);
        needs.known.clear();
        needs.known.insert(ANYBODY, anybody);
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

/// Stands for whoever may be called without being named.
const ANYBODY: &str = "";

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
            // Those that look are not waited for: every way round has one.
            let looked = self.looks.contains(name);
            if looked {
                self.known.insert(name, 0);
            }
            let anybody = if function.calls_anybody { self.known[ANYBODY] } else { 0 };
            let after = function.calls.iter().map(|called| self.of_call(called)).max().unwrap_or(0);
            let need = function.frame + after.max(anybody).max(SLACK);
            self.known.insert(name, need);
            let allowed = if self.program.entries.contains(name) { ENTRY } else { LARGE };
            if need > allowed && !self.last.contains(name) {
                self.looks.insert(function.name);
            }
        }
        if self.looks.contains(name) { SLACK } else { self.known[name] }
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
        let mut function = Self { name, begin, end, frame: 0, calls: BTreeSet::new(), calls_anybody: false };
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
                function.calls_anybody |= is_indirect(to);
                function.calls.extend(types.get(to));
            }
        }
        function.frame = pushed.max(told);
        function
    }
}

/// Bytes that an instruction takes from the stack for a frame.
fn taken_from_stack(name: &str, operands: &str) -> usize {
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
fn source_file(rest: &str) -> Option<(u32, String)> {
    let (number, names) = word(rest);
    let mut names = names.split('"').skip(1).step_by(2);
    let first = names.next()?;
    Some((number.parse().ok()?, names.next().map_or(first.to_owned(), |name| format!("{first}/{name}"))))
}

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

/// Whether nobody looks at the flags as they are before line `at` of a function.
fn flags_are_free(lines: &[&str], labels: &HashMap<&str, usize>, mut at: usize) -> bool {
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
    // A way round, or the end, without anybody who looks.
    true
}

struct Writer<'p> {
    files: &'p HashMap<u32, String>,
    /// Texts, and the labels that they have.
    texts: BTreeMap<String, usize>,
    labels: usize,
    out: String,
    /// What stands behind the function.
    apart: String,
}

impl Writer<'_> {
    fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn finish(mut self) -> String {
        self.line("\t.section\t.rodata.ekiden_places,\"aMS\",@progbits,1");
        for (text, number) in &self.texts {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(self.out, ".Lekiden_text_{number}:\n\t.asciz\t\"{text}\"");
        }
        self.out
    }

    fn label(&mut self, what: &str) -> String {
        self.labels += 1;
        format!(".Lekiden_{what}_{}", self.labels)
    }

    /// The label of code that ends the call with this text.
    fn end(&mut self, text: String) -> String {
        let number = self.texts.len();
        let number = *self.texts.entry(text).or_insert(number);
        let label = self.label("end");
        // It does not come back. A jump says so to whoever follows the code.
        let _ = writeln!(
            self.apart,
            "{label}:\n\tmovq\t$.Lekiden_text_{number}, %rdi\n\tcallq\t{SPENT}@PLT\n\tjmp\t{label}"
        );
        label
    }

    /// The label of code that says that the call went round and round in these lines.
    fn endless(&mut self, lines: Range<usize>, function: &[&str]) -> String {
        self.end(format!("an endless loop, or nearly, at {}", self.place(lines, function)))
    }

    /// Takes a unit of fuel; without any left, `end` is next.
    fn fuel(&mut self, end: &str, keep_flags: bool) {
        let take = format!("\tdecq\t%gs:ekiden_fuel(%rip)\n\tjs\t{end}\n");
        self.out.push_str(&if keep_flags { format!("\tpushfq\n{take}\tpopfq\n") } else { take });
    }

    fn function(&mut self, function: &Function<'_>, lines: &[&str], need: Option<usize>) {
        let lines = &lines[function.begin..function.end];
        let labels: HashMap<&str, usize> = lines
            .iter()
            .enumerate()
            .filter_map(|(at, line)| if let Line::Label(name) = Line::read(line) { Some((name, at)) } else { None })
            .collect();
        // Before the first loop, should one begin here.
        let is_first = |line: &&str| match Line::read(line) {
            Line::Label(name) => name.starts_with(".LBB"),
            line => line.code().is_some(),
        };
        let begin = lines.iter().position(is_first).unwrap_or(lines.len());
        let begin = begin + usize::from(lines.get(begin).is_some_and(|line| line.contains("endbr64")));
        let end = lines
            .iter()
            .rposition(|line| matches!(Line::read(line), Line::Label(name) if name.starts_with(".Lfunc_end")));
        for (at, line) in lines.iter().enumerate() {
            if at == begin {
                if let Some(need) = need {
                    self.look(need, &self.place(0..0, lines));
                }
            }
            if Some(at) == end {
                self.put_apart();
            }
            self.charge(at, lines, &labels);
            match Line::read(line).jump() {
                Some((to, _)) if to.starts_with('*') => {
                    // To a place in a table, which may be an earlier one.
                    let end = self.endless(at..at + 1, lines);
                    self.fuel(&end, true);
                    self.line(line);
                }
                Some((to, name)) if labels.get(to).is_some_and(|target| *target <= at) => {
                    let end = self.endless(labels[to]..at + 1, lines);
                    self.back(name, to, &end, !flags_are_free(lines, &labels, labels[to]));
                }
                _ => self.line(line),
            }
        }
        if end.is_none() {
            self.put_apart();
        }
    }

    /// Takes fuel for what one instruction does by itself for long, or as often as a register says.
    fn charge(&mut self, at: usize, lines: &[&str], labels: &HashMap<&str, usize>) {
        let line = Line::read(lines[at]);
        if line.code().is_some_and(|(name, _)| name == "pause") {
            let end = self.endless(at..at + 1, lines);
            let take = format!("\tsubq\t${PAUSE}, %gs:ekiden_fuel(%rip)\n\tjs\t{end}\n");
            let is_free = flags_are_free(lines, labels, at);
            self.out.push_str(&if is_free { take } else { format!("\tpushfq\n{take}\tpopfq\n") });
            return;
        }
        let (by_length, repeats) = (line.goes().is_some_and(|to| BY_LENGTH.contains(&to)), repeats(lines[at]));
        if !by_length && repeats.is_none() {
            return;
        }
        let end = self.end(format!("far too much is copied, filled or compared at {}", self.place(at..at + 1, lines)));
        let _ = match repeats {
            // Nothing is passed in r11, and the flags are dead across a call.
            None => writeln!(
                self.out,
                "\tmovq\t%rdx, %r11\n\tshrq\t${BYTES_PER_UNIT}, %r11\n\tsubq\t%r11, %gs:ekiden_fuel(%rip)\n\tjs\t{end}"
            ),
            Some(size) => writeln!(
                self.out,
                "\tpushfq\n\tpushq\t%rcx\n\tshrq\t${}, %rcx\n\tsubq\t%rcx, %gs:ekiden_fuel(%rip)\n\tpopq\t%rcx\n\tjs\t{end}\n\tpopfq",
                BYTES_PER_UNIT - size
            ),
        };
    }

    /// A jump back, which takes fuel; whoever goes on instead pays nothing.
    fn back(&mut self, name: &str, to: &str, end: &str, keep_flags: bool) {
        match name {
            "jmp" | "jmpq" => self.fuel(end, keep_flags),
            // There is none for the opposite, and nobody knows of a compiler that uses them.
            "jcxz" | "jecxz" | "jrcxz" | "loop" | "loope" | "loopne" => self.fuel(end, true),
            _ => {
                let on = self.label("on");
                let opposite =
                    name.strip_prefix("jn").map_or_else(|| format!("jn{}", &name[1..]), |rest| format!("j{rest}"));
                self.line(&format!("\t{opposite}\t{on}"));
                self.fuel(end, keep_flags);
                return self.line(&format!("\tjmp\t{to}\n{on}:"));
            }
        }
        self.line(&format!("\t{name}\t{to}"));
    }

    fn put_apart(&mut self) {
        let apart = std::mem::take(&mut self.apart);
        self.out.push_str(&apart);
    }

    /// Looks whether there is as much stack left, and takes a unit of fuel. The one register that nobody counts on where a
    /// function begins is r11.
    fn look(&mut self, need: usize, place: &str) {
        let stack = self.end(format!("the stack is used up at {place}"));
        let _ = writeln!(
            self.out,
            "\tmovq\t%gs:ekiden_guard_sp(%rip), %r11\n\tsubq\t%rsp, %r11\n\tcmpq\t${}, %r11\n\tja\t{stack}",
            STACK.saturating_sub(need)
        );
        let end = self.end(format!("a recursion without end, or nearly, at {place}"));
        self.fuel(&end, false);
    }

    fn place(&self, lines: Range<usize>, function: &[&str]) -> String {
        place(self.files, lines, function)
    }
}

/// The place of the source that some lines of a function are of: in the author's own files if possible, be it a place
/// before them, rather than in what they use.
fn place(files: &HashMap<u32, String>, lines: Range<usize>, function: &[&str]) -> String {
    let sources = |lines: Range<usize>| function[lines].iter().filter_map(|line| source(files, line));
    let inside = sources(lines.clone()).min_by_key(|(file, _)| foreign(file));
    let before = || sources(0..lines.start).rev().find(|(file, _)| foreign(file) == 0);
    let place = inside.filter(|(file, _)| foreign(file) == 0).or_else(before).or(inside);
    let place = place.or_else(|| sources(0..function.len()).min_by_key(|(file, _)| foreign(file)));
    place.map_or("a place that the compiler does not tell".to_owned(), |(file, line)| format!("{file}:{line}"))
}

/// File and line, of a line that tells them.
fn source<'f>(files: &'f HashMap<u32, String>, line: &str) -> Option<(&'f str, u32)> {
    let Line::Directive("loc", rest) = Line::read(line) else { return None };
    let mut numbers = rest.split_whitespace().map_while(|number| number.parse().ok());
    let (file, line) = (numbers.next()?, numbers.next()?);
    files.get(&file).filter(|_| line > 0).map(|file| (file.as_str(), line))
}

/// How far from a policy's author a source file is.
fn foreign(file: &str) -> u32 {
    if ["library/", "registry/", "/"].iter().any(|start| file.starts_with(start)) {
        2
    } else {
        u32::from(
            [
                "framework/ekiden/",
                "framework/abi/",
                "framework/hints/",
                "framework/lock/",
                "observe/recording/",
                "hosts/kernel/",
            ]
            .iter()
            .any(|start| file.starts_with(start)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    const FILES: &str = "\t.file\t1 \"crates/mine/src\" \"lib.rs\"\n\t.file\t2 \"library/core/src\" \"hint.rs\"\n";

    fn function(name: &str, body: &str) -> String {
        format!(
            "\t.type\t{name},@function\n{name}:\n{body}.Lfunc_end_{name}:\n\t.size\t{name}, .Lfunc_end_{name}-{name}\n"
        )
    }

    /// What becomes of a function in a program, between its label and its end, and the texts.
    fn check(program: &str, name: &str, expected: &Expect) {
        let out = limit(&format!("{FILES}{program}")).unwrap();
        let (_, function) = out.split_once(&format!("\n{name}:\n")).unwrap();
        let (function, rest) = function.split_once(&format!(".Lfunc_end_{name}:")).unwrap();
        let texts: String =
            rest.lines().filter(|line| line.contains(".asciz")).map(|line| format!("{line}\n")).collect();
        expected.assert_eq(&format!("{function}{texts}"));
    }

    fn check_one(body: &str, expected: &Expect) {
        check(&function("f", body), "f", expected);
    }

    #[test]
    fn a_loop_takes_fuel_where_it_jumps_back_and_tells_its_line() {
        check_one(
            "\t.loc\t1 7 0\n\txorl\t%eax, %eax\n.LBB0_1:\n\t.loc\t1 8 5\n\tincq\t%rax\n\tcmpq\t%rdi, %rax\n\tjne\t.LBB0_1\n\tretq\n",
            &expect![[r#"
                	.loc	1 7 0
                	xorl	%eax, %eax
                .LBB0_1:
                	.loc	1 8 5
                	incq	%rax
                	cmpq	%rdi, %rax
                	je	.Lekiden_on_2
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	jmp	.LBB0_1
                .Lekiden_on_2:
                	retq
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                	.asciz	"an endless loop, or nearly, at crates/mine/src/lib.rs:8"
            "#]],
        );
    }

    #[test]
    fn an_instruction_that_waits_takes_as_much_as_many_turns() {
        check_one(
            "\t.loc\t1 7 0\n.LBB0_1:\n\tpause\n\tjmp\t.LBB0_1\n",
            &expect![[r#"
                	.loc	1 7 0
                .LBB0_1:
                	subq	$64, %gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	pause
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_2
                	jmp	.LBB0_1
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                .Lekiden_end_2:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_2
                	.asciz	"an endless loop, or nearly, at crates/mine/src/lib.rs:7"
            "#]],
        );
    }

    #[test]
    fn every_condition_has_an_opposite_and_a_jump_without_one_goes_back_itself() {
        let jumps = |name: &str| {
            let out = limit(&function("f", &format!(".LBB0_1:\n\tretq\n\t{name}\t.LBB0_1\n\tretq\n"))).unwrap();
            let name = |line: &str| {
                line.strip_prefix('\t')?
                    .split('\t')
                    .next()
                    .filter(|name| {
                        *name != "jmp" && *name != "js" && (name.starts_with('j') || name.starts_with("loop"))
                    })
                    .map(str::to_owned)
            };
            out.lines().filter_map(name).collect::<Vec<_>>()
        };
        for (one, other) in [("je", "jne"), ("ja", "jna"), ("jbe", "jnbe"), ("jl", "jnl"), ("jo", "jno"), ("jp", "jnp")]
        {
            assert_eq!((jumps(one), jumps(other)), (vec![other.to_owned()], vec![one.to_owned()]));
        }
        assert_eq!(jumps("jrcxz"), ["jrcxz"]);
    }

    #[test]
    fn flags_that_somebody_still_looks_at_are_kept() {
        check_one(
            "\tcmpq\t%rdi, %rax\n.LBB0_1:\n\tmovq\t%rax, %rcx\n\tcmoveq\t%rdx, %rcx\n\tjmp\t.LBB0_1\n",
            &expect![[r#"
                	cmpq	%rdi, %rax
                .LBB0_1:
                	movq	%rax, %rcx
                	cmoveq	%rdx, %rcx
                	pushfq
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	popfq
                	jmp	.LBB0_1
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                	.asciz	"an endless loop, or nearly, at a place that the compiler does not tell"
            "#]],
        );
    }

    fn free(body: &str) -> bool {
        let lines: Vec<&str> = body.lines().collect();
        let label = |(at, line): (usize, &&'static str)| Some((line.strip_suffix(':')?, at));
        let owned: Vec<&'static str> = lines.iter().map(|line| &*line.to_string().leak()).collect();
        let labels = owned.iter().enumerate().filter_map(label).collect();
        flags_are_free(&lines, &labels, 0)
    }

    #[test]
    fn whether_flags_are_looked_at_is_found_out_instruction_by_instruction() {
        for nobody in [
            "movq\t%rax, (%rdi)\ntestq\t%rax, %rax\nje\t.Lx",
            "leaq\t8(%rsp), %rdi\nshlq\t%cl, %rdi\nadcq\t%rax, %rdi",
            "pushq\t%rbx\npause\nlock\t\txaddq\t%rax, (%rdi)\nje\t.Lx",
            "callq\tg@PLT\nje\t.Lx",
            "jmp\t.Lx\n.Ly:\nje\t.Ly\n.Lx:\nsubl\t%eax, %ecx",
            "jmp\tanother_function",
            ".Lx:\njmp\t.Lx",
            "rep;movsq\t(%rsi), %es:(%rdi)\nxorl\t%eax, %eax",
            "movzbl\t%al, %eax\nmovsbl\t%al, %eax\ncltq\nretq",
        ] {
            assert!(free(nobody), "{nobody}");
        }
        for somebody in [
            "je\t.Lx",
            "movq\t%rax, %rcx\nsetb\t%al",
            "cmovneq\t%rax, %rcx",
            "adcq\t$0, %rax",
            "sbbb\t%al, %al",
            "jmp\t.Lx\n.Ly:\nretq\n.Lx:\njb\t.Ly",
            "pushfq",
            "an_instruction_nobody_knows\t%rax",
            "jmpq\t*.LJTI0_0(,%rax,8)",
        ] {
            assert!(!free(somebody), "{somebody}");
        }
    }

    #[test]
    fn a_function_that_calls_itself_looks_at_the_stack_after_its_landing_pad() {
        check_one(
            "\t.loc\t1 3 0\n\tendbr64\n\tpushq\t%rbx\n\tsubq\t$64, %rsp\n\tcallq\tf\n\taddq\t$64, %rsp\n\tpopq\t%rbx\n\tjmp\t__x86_return_thunk\n",
            &expect![[r#"
                	.loc	1 3 0
                	endbr64
                	movq	%gs:ekiden_guard_sp(%rip), %r11
                	subq	%rsp, %r11
                	cmpq	$6032, %r11
                	ja	.Lekiden_end_1
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_2
                	pushq	%rbx
                	subq	$64, %rsp
                	callq	f
                	addq	$64, %rsp
                	popq	%rbx
                	jmp	__x86_return_thunk
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                .Lekiden_end_2:
                	movq	$.Lekiden_text_1, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_2
                	.asciz	"a recursion without end, or nearly, at crates/mine/src/lib.rs:3"
                	.asciz	"the stack is used up at crates/mine/src/lib.rs:3"
            "#]],
        );
    }

    #[test]
    fn who_neither_loops_nor_recurses_is_left_as_it_is() {
        let body = "\tpushq\t%rax\n\ttestq\t%rdi, %rdi\n\tje\t.LBB0_1\n\tcallq\tg\n.LBB0_1:\n\tpopq\t%rax\n\tjmp\tg\n";
        let program = function("f", body) + &function("g", "\tcallq\tmemcpy@PLT\n\tretq\n");
        check(
            &program,
            "f",
            &expect![[r#"
                	pushq	%rax
                	testq	%rdi, %rdi
                	je	.LBB0_1
                	callq	g
                .LBB0_1:
                	popq	%rax
                	jmp	g
                	.asciz	"far too much is copied, filled or compared at a place that the compiler does not tell"
            "#]],
        );
    }

    fn looks(program: &str) -> Vec<String> {
        let text = format!("{FILES}{program}");
        let looks = Program::read(&text).looks();
        looks.into_iter().map(|(name, need)| format!("{name} {need}")).collect()
    }

    #[test]
    fn one_function_of_every_way_round_looks() {
        let call = |to: &str| format!("\tpushq\t%rax\n\tcallq\t{to}\n\tpopq\t%rax\n\tretq\n");
        let there_and_back = function("f", &call("g")) + &function("g", "\tjmp\tf@PLT\n") + &function("h", &call("f"));
        assert_eq!(looks(&there_and_back), ["f 56"]);
        // By way of a pointer: whose address is anywhere but in the table, and who may come to call a pointer.
        let pointer = function("f", &call("*%rax")) + &function("g", &call("__x86_indirect_thunk_r11"));
        assert_eq!(looks(&pointer), Vec::<String>::new());
        assert_eq!(looks(&format!("{pointer}.Lvtable:\n\t.quad\tg\nekiden_policy_table:\n\t.quad\tf\n")), ["g 48"]);
        let leaf = function("f", &call("*%rax")) + &function("g", "\tsubq\t$104, %rsp\n\taddq\t$104, %rsp\n\tretq\n");
        assert_eq!(looks(&format!("{leaf}.Lvtable:\n\t.quad\tg\n")), Vec::<String>::new());
    }

    #[test]
    fn who_needs_much_looks_whoever_calls_it() {
        let large = "\tsubq\t$3000, %rsp\n\taddq\t$3000, %rsp\n\tretq\n";
        let call = |to: &str| format!("\tsubq\t$1500, %rsp\n\tcallq\t{to}\n\taddq\t$1500, %rsp\n\tretq\n");
        assert_eq!(looks(&function("f", large)), ["f 3040"]);
        // Where a call begins there is more.
        assert_eq!(looks(&(function("f", large) + "ekiden_policy_table:\n\t.quad\tf\n")), Vec::<String>::new());
        // Who looks is not counted by those before it; who does not, is.
        assert_eq!(looks(&(function("f", &call("g")) + &function("g", large))), ["g 3040"]);
        let chain = function("f", &call("g")) + &function("g", &call("memcpy@PLT"));
        assert_eq!(looks(&chain), ["f 3048"]);
        // Its pages are touched one after the other, as the compiler does it for large frames.
        let touched = "\tleaq\t-12288(%rsp), %r11\n.LBB0_1:\n\tsubq\t$4096, %rsp\n\tmovq\t$0, (%rsp)\n\tcmpq\t%r11, %rsp\n\tjne\t.LBB0_1\n\tretq\n";
        assert_eq!(looks(&function("f", touched)), ["f 16424"]);
        assert!(
            limit(&function("f", touched)).unwrap().contains("cmpq\t$0, %r11\n\tja\t"),
            "it can never have as much"
        );
    }

    #[test]
    fn the_way_to_the_end_is_not_asked_for_stack() {
        let end = function(SPENT, "\tcallq\tlast\n\tretq\n") + &function("last", "\tcallq\t*%rax\n\tretq\n");
        assert_eq!(looks(&format!("{end}.Lvtable:\n\t.quad\tlast\n")), Vec::<String>::new());
        // A panic on everybody's way does not make everybody look.
        let panic = function("x_rust_begin_unwind", "\tcallq\tprint\n\tretq\n")
            + &function("print", "\tcallq\tx_rust_begin_unwind\n\tretq\n");
        assert_eq!(looks(&panic), ["x_rust_begin_unwind 48"]);
    }

    #[test]
    fn a_place_in_the_authors_files_is_told_rather_than_one_in_the_library() {
        check_one(
            "\t.loc\t1 7 0\n\ttestq\t%rdi, %rdi\n\t.loc\t1 0 0\n.LBB0_1:\n\t.loc\t2 491 5\n\t#APP\n\t#NO_APP\n\tjmp\t.LBB0_1\n",
            &expect![[r#"
                	.loc	1 7 0
                	testq	%rdi, %rdi
                	.loc	1 0 0
                .LBB0_1:
                	.loc	2 491 5
                	#APP
                	#NO_APP
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	jmp	.LBB0_1
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                	.asciz	"an endless loop, or nearly, at crates/mine/src/lib.rs:7"
            "#]],
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        let why = |program: &str| limit(program).unwrap_err().to_string();
        let in_f = |body: &str| why(&function("f", body));
        for (body, line) in [
            ("\tpause\n\tjmp\t1b\n", "`jmp\t1b`"),
            ("1:\n\tpause; jmp\t1b\n", "`pause; jmp\t1b`"),
            (".Lx: jmp\t.Lx\n", "`.Lx: jmp\t.Lx`"),
            ("\tjmp\t.\n", "`jmp\t.`"),
            ("\tjmp\tf+4\n", "`jmp\tf+4`"),
            ("\tjne\t.Lelsewhere\n", "`jne\t.Lelsewhere`"),
            ("\tcallq\t.Lbelow\n.Lbelow:\n", "`callq\t.Lbelow`"),
            ("\t.byte\t0xeb, 0xfe\n", "`.byte\t0xeb, 0xfe`"),
            ("\t.section\t.text.more\n\tnop\n", "`.section\t.text.more`"),
        ] {
            assert!(in_f(body).contains(line), "{}", in_f(body));
        }
        let f = function("f", "\tretq\n");
        let g = "g:\n.L2:\n\tjmp\t.L2\n\t.size\tg, 2\n";
        for kind in ["", "\t.type\tg,%function\n", "\t.type\tg,STT_FUNC\n"] {
            assert!(why(&format!("{f}{kind}{g}")).contains("outside of functions"), "{kind}");
            assert!(why(&format!("{kind}{g}{f}")).contains("outside of functions"), "{kind}");
        }
        // Into the middle of another one, and a function without an end.
        assert!(why(&(function("f", "inner:\n\tretq\n") + &function("g", "\tjmp\tinner\n"))).contains("where it goes"));
        assert!(why("\t.type\tf,@function\nf:\n\tretq\n").contains("end is not said"));
        assert!(why("").contains("there is no function"));
    }

    #[test]
    fn what_goes_through_memory_takes_fuel_for_its_length() {
        check_one(
            "\t.loc\t1 4 0\n\tcallq\tmemmove@PLT\n\trep;movsq\t(%rsi), %es:(%rdi)\n\tjmp\tmemset\n",
            &expect![[r#"
                	.loc	1 4 0
                	movq	%rdx, %r11
                	shrq	$5, %r11
                	subq	%r11, %gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	callq	memmove@PLT
                	pushfq
                	pushq	%rcx
                	shrq	$2, %rcx
                	subq	%rcx, %gs:ekiden_fuel(%rip)
                	popq	%rcx
                	js	.Lekiden_end_2
                	popfq
                	rep;movsq	(%rsi), %es:(%rdi)
                	movq	%rdx, %r11
                	shrq	$5, %r11
                	subq	%r11, %gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_3
                	jmp	memset
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                .Lekiden_end_2:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_2
                .Lekiden_end_3:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_3
                	.asciz	"far too much is copied, filled or compared at crates/mine/src/lib.rs:4"
            "#]],
        );
        assert_eq!(["rep stosb", "rep;movsw", "\trepne\tscasl\t%eax"].map(repeats), [Some(0), Some(1), Some(2)]);
        assert_eq!(
            ["retq", "report", "\tlock\txaddq\t%rax, (%rdi)", "\trep\tbsfq\t%rax, %rcx"].map(repeats),
            [None; 4]
        );
    }
}
