//! Finds in a policy's program what the kernel has nothing for, with its line: the kernel's own tools would name functions that are in no
//! source.

use super::{
    SLACK, STACK,
    line::Line,
    place::{distance, place, source},
    program::Program,
};
use std::fmt;

/// What a policy cannot do in the kernel, and where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    what: What,
    place: String,
    /// Whether the place is in the policy's own source.
    is_own: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Float,
    Wide,
    Frame { bytes: usize },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = &self.place;
        match self.what {
            What::Float => write!(
                f,
                "computes with floating-point numbers at {place}, and the kernel has none: count in integers, as in `share * 1024 / total`"
            ),
            What::Wide => write!(
                f,
                "divides or multiplies numbers of 128 bits at {place}, for which the kernel has nothing: compute in 64 bits, shifting first if \
                 need be"
            ),
            What::Frame { bytes } => write!(
                f,
                "has a function with {bytes} bytes of variables on the stack at {place}, and a call may use {STACK} in all: put large arrays into \
                 the policy or a `Box`"
            ),
        }
    }
}

/// The first thing in a program that cannot be, in the policy's own source if possible.
pub fn unfit(assembly: &str) -> Option<Unfit> {
    let program = Program::read(assembly);
    let mut found: Vec<Unfit> = Vec::new();
    for function in &program.functions {
        let lines = &program.lines[function.begin..function.end];
        let mut add = |what, at: usize| {
            let is_own =
                (0..=at).filter_map(|at| source(&program.files, lines[at])).any(|(file, _)| distance(file) == 0);
            found.push(Unfit { what, place: place(&program.files, at..at + 1, lines), is_own });
        };
        if function.frame + SLACK > STACK {
            let first =
                lines.iter().position(|line| source(&program.files, line).is_some_and(|(file, _)| distance(file) == 0));
            add(What::Frame { bytes: function.frame }, first.unwrap_or(0));
        }
        for (at, line) in lines.iter().enumerate() {
            let to = Line::read(line).goes().filter(|to| !program.types.contains(to));
            if let Some(what) = to.and_then(of_compiler) {
                add(what, at);
            }
        }
    }
    let own = found.iter().position(|one| one.is_own);
    let at = own.unwrap_or(0);
    (at < found.len()).then(|| found.swap_remove(at))
}

/// What it means that the compiler calls a function of its own library of this name.
fn of_compiler(name: &str) -> Option<What> {
    const WIDE: [&str; 10] = [
        "__multi3",
        "__muloti4",
        "__divti3",
        "__modti3",
        "__udivti3",
        "__umodti3",
        "__udivmodti4",
        "__ashlti3",
        "__ashrti3",
        "__lshrti3",
    ];
    const MATHS: [&str; 21] = [
        "fma",
        "fmod",
        "sqrt",
        "floor",
        "ceil",
        "round",
        "roundeven",
        "rint",
        "trunc",
        "pow",
        "exp",
        "exp2",
        "log",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "fmin",
        "fmax",
        "cbrt",
    ];
    const SIZES: [&str; 4] = ["hf", "sf", "df", "tf"];
    if WIDE.contains(&name) {
        return Some(What::Wide);
    }
    if MATHS.contains(&name) || name.strip_suffix('f').is_some_and(|name| MATHS.contains(&name)) {
        return Some(What::Float);
    }
    let name = name.strip_prefix("__")?;
    let begins = ["fix", "float", "extend", "trunc"].iter().any(|begin| name.starts_with(begin));
    let is_float = SIZES.iter().any(|size| {
        name.strip_suffix(['2', '3']).is_some_and(|name| name.ends_with(size)) || begins && name.contains(size)
    });
    is_float.then_some(What::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(body: &str) -> Option<String> {
        let files = "\t.file\t1 \"src\" \"lib.rs\"\n\t.file\t2 \"library/core/src\" \"num.rs\"\n";
        let function =
            format!("\t.type\tf,@function\nf:\n\t.loc\t1 7 0\n{body}.Lfunc_end0:\n\t.size\tf, .Lfunc_end0-f\n");
        unfit(&format!("{files}{function}")).map(|unfit| unfit.to_string())
    }

    #[test]
    fn fractions_are_found_by_the_functions_that_the_compiler_calls_for_them() {
        for name in
            ["__muldf3", "__adddf3", "__ltsf2", "__floatundidf", "__fixunsdfdi", "__extendsfdf2", "floor", "sqrtf"]
        {
            let text = told(&format!("\t.loc\t1 9 4\n\tcallq\t{name}@PLT\n")).unwrap_or_default();
            assert!(text.contains("floating-point numbers at src/lib.rs:9"), "{name}: {text}");
        }
        for name in ["memcpy", "ekiden_spent", "__x86_return_thunk", "truncate", "__fentry__"] {
            assert_eq!(told(&format!("\tcallq\t{name}@PLT\n")), None, "{name}");
        }
    }

    #[test]
    fn wide_divisions_and_large_frames_are_told_with_their_line() {
        let text = told("\t.loc\t1 8 4\n\tjmp\t__udivti3@PLT\n").unwrap();
        assert!(text.contains("128 bits at src/lib.rs:8"), "{text}");
        let text = told("\t.loc\t2 8 4\n\tsubq\t$8192, %rsp\n").unwrap();
        assert!(text.contains("8200 bytes") && text.contains("src/lib.rs:7"), "{text}");
        assert_eq!(told("\tsubq\t$4096, %rsp\n"), None);
    }
}
