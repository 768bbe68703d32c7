//! A line of assembly: what stands in it, and where it goes.

/// A line, without its comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Label(&'a str),
    Directive(&'a str, &'a str),
    Code(&'a str, &'a str),
    Nothing,
}

impl<'a> Line<'a> {
    pub(super) fn read(text: &'a str) -> Self {
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

    pub(super) fn code(self) -> Option<(&'a str, &'a str)> {
        if let Self::Code(name, operands) = self { Some((name, operands)) } else { None }
    }

    /// Where a jump goes, and its name.
    pub(super) fn jump(self) -> Option<(&'a str, &'a str)> {
        let (name, operands) = self.code()?;
        (name.starts_with('j') || name.starts_with("loop")).then(|| (symbol(operands), name))
    }

    /// Where a call or a jump goes.
    pub(super) fn goes(self) -> Option<&'a str> {
        match self.code()? {
            ("call" | "callq", operands) => Some(symbol(operands)),
            _ => self.jump().map(|(to, _)| to),
        }
    }
}

pub(super) fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    (word, rest.trim())
}

pub(super) fn symbol(operand: &str) -> &str {
    operand.trim_end_matches("@PLT").trim_matches('"')
}

/// A return, where kernels want it by way of a function of theirs.
pub(super) fn is_return(to: &str) -> bool {
    to == "__x86_return_thunk"
}

/// A call or jump to somewhere that is known at run time only.
pub(super) fn is_indirect(to: &str) -> bool {
    to.starts_with('*') || to.starts_with("__x86_indirect_thunk")
}

/// Whether it may be the name of a function: neither a label of the compiler's, nor a number, nor a sum.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '$'))
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$'))
}

/// Whether there is nothing in a line besides a label, a directive or an instruction. A prefix may come before a semicolon.
pub(super) fn stands_alone(text: &str) -> bool {
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
pub(super) fn repeats(line: &str) -> Option<u32> {
    let line = line.trim_start();
    let begins =
        ["rep;", "rep\t", "rep ", "repe", "repz", "repne", "repnz"].iter().any(|prefix| line.starts_with(prefix));
    let (name, _) = Line::read(line).code().filter(|_| begins)?;
    // Others have the prefix for another reason: `rep bsfq` counts zeros.
    let size = ["movs", "stos", "cmps", "scas", "lods"].iter().find_map(|string| name.strip_prefix(string))?;
    ["b", "w", "l", "q"].iter().position(|known| *known == size).map(|size| size as u32)
}

/// The parts of a text that may be names.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')))
        .map(|name| name.trim_matches('$'))
}
