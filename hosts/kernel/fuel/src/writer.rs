//! Writes a program anew, with what takes fuel and looks at the stack.

use super::{
    SPENT, STACK,
    flags::flags_are_free,
    line::{Line, repeats},
    place::place,
    program::Function,
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    ops::Range,
};

/// Functions of the kernel's whose third argument says how many bytes they go through. They take fuel for them.
const BY_LENGTH: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "bcmp"];
/// Binary logarithm of the bytes that one unit of fuel pays for.
const BYTES_PER_UNIT: u32 = 5;
/// The fuel for a PAUSE, in loop iterations: it takes 40 to 140 cycles. Emulators let other CPUs run meanwhile, for milliseconds.
const PAUSE: u32 = 64;

pub(super) struct Writer<'p> {
    pub(super) files: &'p HashMap<u32, String>,
    /// Texts, and the labels that they have.
    pub(super) texts: BTreeMap<String, usize>,
    pub(super) labels: usize,
    pub(super) out: String,
    /// What stands behind the function.
    pub(super) apart: String,
}

impl Writer<'_> {
    pub(super) fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    pub(super) fn finish(mut self) -> String {
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
        // It does not return. A jump says so to tools that follow the code.
        let _ = writeln!(
            self.apart,
            "{label}:\n\tmovq\t$.Lekiden_text_{number}, %rdi\n\tcallq\t{SPENT}@PLT\n\tjmp\t{label}"
        );
        label
    }

    /// The label of code that says that a loop in these lines does not end.
    fn endless(&mut self, lines: Range<usize>, function: &[&str]) -> String {
        self.end(format!("an endless loop, or nearly, at {}", self.place(lines, function)))
    }

    /// Takes a unit of fuel; without any left, `end` is next.
    fn fuel(&mut self, end: &str, keep_flags: bool) {
        let take = format!("\tdecq\t%gs:ekiden_fuel(%rip)\n\tjs\t{end}\n");
        self.out.push_str(&if keep_flags { format!("\tpushfq\n{take}\tpopfq\n") } else { take });
    }

    pub(super) fn function(&mut self, function: &Function<'_>, lines: &[&str], need: Option<usize>) {
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

    /// A back-edge, which takes fuel; falling through costs nothing.
    fn back(&mut self, name: &str, to: &str, end: &str, keep_flags: bool) {
        match name {
            "jmp" | "jmpq" => self.fuel(end, keep_flags),
            // These have no opposite, and compilers do not use them.
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

    /// Checks that there is as much stack left, and takes a unit of fuel. r11 is the one register that holds nothing where a function
    /// begins.
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
