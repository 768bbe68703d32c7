//! What each command that reads a trace or a recording says of each that is stored in this checkout: one golden per file, with a section for
//! each command. `UPDATE_EXPECT=1 cargo test -p ekiden-cli --test goldens` writes them anew.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use expect_test::expect_file;

/// The commands. `FILE` is the trace; what one writes, it writes to `out`.
const COMMANDS: &[&str] = &[
    "check FILE",
    "check FILE --every 20 --persists 10 --lag 5 --json",
    "explain FILE FILE --json",
    "explain FILE FILE",
    "runqlat --trace FILE",
    "trace cat FILE",
    "trace cat FILE --cpu 0-1 --from 100us --until 1ms",
    "trace cut FILE -o out --from 1ms --until 5ms",
    "trace export FILE out --format csv",
    "trace export FILE out --format jsonl",
    "trace export FILE out --format perfetto",
    "trace info FILE",
    "view FILE --report page.html",
];

/// Where the traces and recordings are.
const FOLDERS: &[&str] =
    &["lab/fuzz/seeds/trace", "lab/fuzz/seeds/foreign", "lab/fuzz/seeds/recording", "hosts/replay/tests/recordings"];

/// Of a long text so many lines at its beginning and its end; the rest is in the digest.
const HEAD: usize = 24;
const TAIL: usize = 3;

fn stored() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = FOLDERS.iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort_by_key(|path| path.file_name().unwrap().to_owned());
    files
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A text that is short enough to be read, or its beginning, its end and a digest.
fn shortened(bytes: &[u8]) -> String {
    let whole = || format!("… {} bytes, digest {:016x}\n", bytes.len(), digest(bytes));
    let Ok(text) = std::str::from_utf8(bytes) else { return whole() };
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= HEAD + TAIL && lines.iter().all(|line| line.len() < 1_000) {
        return text.to_owned();
    }
    let line = |line: &&str| line.chars().take(160).collect::<String>() + "\n";
    let (head, tail) = (&lines[..HEAD.min(lines.len())], &lines[lines.len().saturating_sub(TAIL)..]);
    head.iter().map(line).collect::<String>() + &whole() + &tail.iter().map(line).collect::<String>()
}

#[test]
fn every_command_says_of_every_stored_trace_what_it_did() {
    let files = stored();
    assert!(files.len() >= 7, "{files:?}");
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let mut said = String::new();
        for command in COMMANDS {
            let directory = tempfile::tempdir().unwrap();
            fs::copy(&file, directory.path().join(name)).unwrap();
            let words = command.split(' ').map(|word| if word == "FILE" { name } else { word });
            let mut ekiden = Command::new(env!("CARGO_BIN_EXE_ekiden"));
            let output = ekiden.args(words).current_dir(directory.path()).output().unwrap();
            let code = output.status.code().unwrap();
            writeln!(said, "$ ekiden {}", command.replace("FILE", name)).unwrap();
            said += &shortened(&output.stdout);
            said += &shortened(&output.stderr);
            // The page has scripts and styles in it, which have tests of their own.
            if let Ok(written) = fs::read(directory.path().join("out")) {
                writeln!(said, "--- out").unwrap();
                said += &shortened(&written);
            }
            writeln!(said, "--- exit code {code}\n").unwrap();
        }
        expect_file![format!("goldens/{name}.txt")].assert_eq(&said);
    }
}
