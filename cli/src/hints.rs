//! `ekiden hint` and `ekiden hints`: what programs may tell a policy, by hand and as a header for C.

use std::{fmt::Write, process::ExitCode, time::Duration};

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use ekiden_host::hints::{Geometry, Kind, Shape, Side};
use ekiden_linked::Linked;
use ekiden_user::{BytesQueue, Policy};

use crate::{
    failure::{Exit, Failure},
    own::{AsRoot, Needs},
};

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden hint locality change=join thread=4711 set=1
  ekiden hint locality --wait 1000 change=leave thread=4711
      and show what it answers in a second

What a policy undoes when a program ends, it undoes when this command does.")]
pub(crate) struct Hint {
    /// The policy, which has to run
    policy: String,
    /// Fields of the hint; what is left out is 0
    #[arg(value_name = "FIELD=VALUE")]
    fields: Vec<String>,
    /// Keep the queue open for so many milliseconds, and show notices
    #[arg(long, value_name = "MS", default_value_t = 100)]
    wait: u64,
    #[command(flatten)]
    as_root: AsRoot,
}

#[derive(Args)]
#[command(after_help = "\
Example:
  ekiden hints header locality > locality.h")]
pub(crate) struct Hints {
    #[command(subcommand)]
    command: HintsCommand,
}

#[derive(Subcommand)]
enum HintsCommand {
    /// Write a policy's types as a header for C, to be used with framework/include/ekiden.h
    #[command(after_help = "\
Example:
  ekiden hints header locality > locality.h")]
    Header {
        /// The policy: one that comes with Ekiden, or of the project in the current directory
        policy: String,
        #[command(flatten)]
        as_root: AsRoot,
    },
}

fn linked(policy: &str) -> Result<&'static Linked> {
    let talks = |linked: &&Linked| linked.hint.bytes + linked.notice.bytes > 0;
    ekiden_linked::find(policy).filter(talks).ok_or_else(|| {
        let known: Vec<_> = ekiden_linked::all().filter(talks).map(|linked| linked.name).collect();
        let why = format!(
            "{policy} is none of the policies that take hints: {}; with a policy of your own, run it in the directory of its project",
            known.join(", ")
        );
        Failure::new(Exit::Usage, why).into()
    })
}

impl Hints {
    /// The policies that have to be in this process.
    pub(crate) fn needs(&self) -> Needs {
        let HintsCommand::Header { policy, as_root } = &self.command;
        Needs::of([policy], *as_root)
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let HintsCommand::Header { policy, .. } = self.command;
        print!("{}", header(linked(&policy)?));
        Ok(ExitCode::SUCCESS)
    }
}

impl Hint {
    /// The policies that have to be in this process.
    pub(crate) fn needs(&self) -> Needs {
        Needs::of([&self.policy], self.as_root).for_root()
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let linked = linked(&self.policy)?;
        let hint = encode(&linked.hint, &self.fields).map_err(|why| Failure::new(Exit::Usage, why.to_string()))?;
        let geometry = Geometry { up: Side::of(&linked.hint, 1), down: Side::of(&linked.notice, 64) };
        let mut queue = BytesQueue::open(Policy::Named(linked.name), geometry)?;
        queue.send(&hint)?;
        queue.ring()?;
        let until = std::time::Instant::now() + Duration::from_millis(self.wait);
        let mut notice = vec![0; linked.notice.bytes];
        loop {
            while queue.receive(&mut notice) {
                println!("{}", show(&linked.notice, &notice));
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() || !queue.wait(left)? {
                break;
            }
        }
        let refused = queue.counts().refused;
        if refused > 0 {
            bail!("the policy refused it: no value of {}", linked.hint);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The bytes of a value of which these fields are given.
fn encode(shape: &Shape, fields: &[String]) -> Result<Vec<u8>> {
    let mut bytes = vec![0; shape.bytes];
    for given in fields {
        let (name, value) = given.split_once('=').unwrap_or(("", given));
        let (offset, field) = match shape.kind {
            Kind::Struct(fields) => {
                let found = fields.iter().find(|field| field.name == name);
                let field = found.ok_or_else(|| anyhow!("{given}: the hint is {shape}; name one of its fields"))?;
                (field.offset, field.shape)
            }
            _ => (0, shape),
        };
        let number = number(field, value).ok_or_else(|| anyhow!("{given}: {value} is no value of {field}"))?;
        bytes[offset..offset + field.bytes].copy_from_slice(&number.to_le_bytes()[..field.bytes]);
    }
    Ok(bytes)
}

/// The value of a number or of a name, if it is one of the type.
fn number(shape: &Shape, value: &str) -> Option<i128> {
    let number = match shape.kind {
        Kind::Number => match value {
            "true" => 1,
            "false" => 0,
            _ => value.parse::<i128>().ok()?,
        },
        Kind::Enum(names) => i128::from(names.iter().find(|(name, _)| name.eq_ignore_ascii_case(value))?.1),
        Kind::Array(..) | Kind::Struct(_) => return None,
    };
    let bits = shape.bytes as u32 * 8;
    let (least, most) = match shape.name {
        "bool" => (0, 1),
        name if name.starts_with('i') => (-1 << (bits - 1), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    };
    (least..=most).contains(&number).then_some(number)
}

/// A value in words.
fn show(shape: &Shape, bytes: &[u8]) -> String {
    let part = |shape: &Shape, offset: usize| show(shape, &bytes[offset..offset + shape.bytes]);
    match shape.kind {
        Kind::Struct(fields) => {
            let fields = fields.iter().map(|field| format!("{}={}", field.name, part(field.shape, field.offset)));
            fields.collect::<Vec<_>>().join(" ")
        }
        Kind::Array(of, times) => (0..times).map(|index| part(of, index * of.bytes)).collect::<Vec<_>>().join(","),
        Kind::Number | Kind::Enum(_) => {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let value = u64::from_le_bytes(word);
            let unused = 64 - bytes.len() as u32 * 8;
            let signed = (value << unused) as i64 >> unused;
            match shape.kind {
                Kind::Enum(names) if names.iter().any(|(_, number)| *number == signed) => names
                    .iter()
                    .find(|(_, number)| *number == signed)
                    .map_or_else(String::new, |(name, _)| name.to_lowercase()),
                _ if shape.name.starts_with('i') => signed.to_string(),
                _ => value.to_string(),
            }
        }
    }
}

/// A Rust name as C writes it.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// What a field is declared as: before its name, and behind it.
fn declared(prefix: &str, shape: &Shape) -> (String, String) {
    match shape.kind {
        Kind::Number if shape.name == "bool" => ("uint8_t".into(), String::new()),
        Kind::Number => {
            let sign = if shape.name.starts_with('u') { "u" } else { "" };
            (format!("{sign}int{}_t", shape.bytes * 8), String::new())
        }
        // An enumeration of C's has a size of the compiler's choice.
        Kind::Enum(_) => (format!("uint{}_t", shape.bytes * 8), String::new()),
        Kind::Struct(_) => (format!("struct {prefix}_{}", snake(shape.name)), String::new()),
        Kind::Array(of, times) => {
            let (before, behind) = declared(prefix, of);
            (before, format!("[{times}]{behind}"))
        }
    }
}

/// Declares what a type is made of, each once, and then the type itself.
fn declare(text: &mut String, done: &mut Vec<Shape>, prefix: &str, shape: &Shape) {
    if done.contains(shape) {
        return;
    }
    done.push(*shape);
    // Writing to a text never fails.
    let _ = match shape.kind {
        Kind::Number => Ok(()),
        Kind::Array(of, _) => {
            declare(text, done, prefix, of);
            Ok(())
        }
        Kind::Enum(names) => {
            let name = snake(shape.name);
            let all = names.iter().map(|(variant, number)| {
                format!("\t{}_{} = {number},\n", prefix.to_uppercase(), snake(variant).to_uppercase())
            });
            write!(text, "\nenum {prefix}_{name} {{\n{}}};\n", all.collect::<String>())
        }
        Kind::Struct(fields) => {
            fields.iter().for_each(|field| declare(text, done, prefix, field.shape));
            let all = fields.iter().map(|field| {
                let (before, behind) = declared(prefix, field.shape);
                let what = match field.shape.kind {
                    Kind::Enum(_) => format!("\t/* enum {prefix}_{} */", snake(field.shape.name)),
                    _ => String::new(),
                };
                format!("\t{before} {}{behind};{what}\n", field.name)
            });
            write!(text, "\nstruct {prefix}_{} {{\n{}}};\n", snake(shape.name), all.collect::<String>())
        }
    };
}

/// The types of a policy's queues for C.
fn header(linked: &Linked) -> String {
    let prefix = linked.name.replace('-', "_");
    let guard = format!("EKIDEN_{}_H", prefix.to_uppercase());
    let mut text = format!(
        "/* What programs and the policy {0} tell each other, written by `ekiden hints header {0}`. Use it with ekiden.h. */\n\
         #ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n#include \"ekiden.h\"\n",
        linked.name
    );
    let mut done = Vec::new();
    for (what, shape) in [("hint", &linked.hint), ("notice", &linked.notice)] {
        if shape.bytes == 0 {
            continue;
        }
        declare(&mut text, &mut done, &prefix, shape);
        let (before, behind) = declared(&prefix, shape);
        let _ = write!(text, "\ntypedef {before} {prefix}_{what}{behind};\n");
    }
    let _ = write!(
        text,
        "\n/* For ekiden_queue_open: the policy that runs has to have the same. */\n\
         static inline struct ekiden_types {prefix}_types(void)\n{{\n\tstruct ekiden_types types = {{\n\
         \t\t0x{:016x}ULL, 0x{:016x}ULL, {}, {}\n\t}};\n\n\treturn types;\n}}\n\n#endif\n",
        linked.hint.fingerprint(),
        linked.notice.fingerprint(),
        linked.hint.bytes,
        linked.notice.bytes
    );
    text
}

#[cfg(test)]
mod tests {
    use std::{
        path::{Path, PathBuf},
        process::Command,
    };

    use ekiden_policies::{Change, Together};
    use zerocopy::IntoBytes;

    use super::*;

    fn fields(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_hint_is_made_of_its_fields() {
        let shape = linked("locality").unwrap().hint;
        let made = encode(&shape, &fields("change=join thread=4711 set=3")).unwrap();
        assert_eq!(made, Together { change: Change::Join, thread: 4711, set: 3 }.as_bytes());
        assert_eq!(show(&shape, &made), "change=join thread=4711 set=3");
        for wrong in ["colour=3", "change=sit", "thread=-1", "thread=4294967296", "set"] {
            let why = encode(&shape, &fields(wrong)).unwrap_err().to_string();
            assert!(why.starts_with(wrong), "{why}");
        }
        assert_eq!(encode(&linked("eevdf").unwrap().hint, &fields("3000000")).unwrap(), 3_000_000_u64.to_le_bytes());
        assert!(linked("fifo").is_err());
    }

    /// A program compiled with the header of a policy beside it.
    fn compiled(directory: &Path, policy: &str, program: &str) -> PathBuf {
        let (source, binary) = (directory.join("program.c"), directory.join("program"));
        std::fs::write(directory.join(format!("{policy}.h")), header(linked(policy).unwrap())).unwrap();
        std::fs::write(&source, program).unwrap();
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../framework/include");
        let made = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", include])
            .args([source.as_os_str(), "-o".as_ref(), binary.as_os_str()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}\n{program}", String::from_utf8_lossy(&made.stderr));
        binary
    }

    #[test]
    fn the_c_in_the_documents_compiles_and_works_without_the_policy() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hints.md")).unwrap();
        let (_, shown) = text.split_once("```c\n#define _GNU_SOURCE").expect("docs/hints.md shows no C");
        let (shown, _) = shown.split_once("```").expect("its C does not end");
        let (included, main) = shown.split_once("\n\n").expect("it has lines that include");
        let program = format!(
            "#define EKIDEN_DEVICE \"/no/such/device\"\n#define _GNU_SOURCE{included}\n#include <stdio.h>\n\
             static int report(const char *reason)\n{{\n\tputs(reason);\n\treturn 7;\n}}\n\
             int main(void)\n{{\n{main}\n\treturn 0;\n}}\n"
        );
        let directory = tempfile::tempdir().unwrap();
        let ran = Command::new(compiled(directory.path(), "locality", &program)).status().unwrap();
        assert_eq!(ran.code(), Some(7));
    }

    #[test]
    fn the_header_has_the_layout_of_the_policy() {
        let directory = tempfile::tempdir().unwrap();
        let hint = linked("locality").unwrap().hint;
        let (up, bytes) = (hint.fingerprint(), hint.bytes);
        let program = format!(
            "#include \"locality.h\"\n_Static_assert(sizeof(locality_hint) == {bytes}, \"size\");\n\
             _Static_assert(__builtin_offsetof(locality_hint, set) == 8, \"set\");\n\
             int main(void)\n{{\n\tlocality_hint hint = {{ LOCALITY_JOIN, 1, 2 }};\n\tstruct locality_placed placed = {{ 3, 4 }};\n\n\
             \treturn locality_types().up == {up}ULL && hint.thread == 1 && placed.cpu == 4 ? 0 : 1;\n}}\n"
        );
        let binary = compiled(directory.path(), "locality", &program);
        assert!(Command::new(binary).status().unwrap().success());
    }
}
