//! What each command that reads a trace or a recording says of each that is stored in this checkout: one golden per file, with a section for
//! each command. `UPDATE_EXPECT=1 cargo test -p ekiden-cli --test goldens` writes them anew.

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use ekiden_recording::RECORDING_VERSION;
use ekiden_trace::TRACE_VERSION;
use expect_test::expect_file;
use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    schema::printer::print_schema,
};

/// The commands. `FILE` is the trace, the other stored ones are beside it, and what a command writes, it writes to `out`. What stands after
/// `&&` says what is in that.
const COMMANDS: &[&str] = &[
    "check FILE",
    "check FILE --every 20 --persists 10 --lag 5 --json",
    "explain FILE FILE --json",
    "explain FILE FILE",
    "explain FILE noted.trace",
    "replay FILE",
    "replay FILE --set slice_min_us=4000",
    "replay FILE --json",
    "replay FILE --what-if fifo",
    "replay FILE --what-if fifo --json",
    "runqlat --trace FILE",
    "trace cat FILE",
    "trace cat FILE --cpu 0-1 --from 100us --until 1ms",
    "trace considered FILE looked.ekirec -o out && trace info out",
    "trace cut FILE -o out --from 1ms --until 5ms",
    "trace export FILE out --format csv",
    "trace export FILE out --format jsonl",
    "trace export FILE out --format parquet",
    "trace export FILE out --format perfetto",
    "trace info FILE",
    "trace info FILE --json",
    "trace notes FILE noted.ekirec -o out && trace info out",
    "view FILE --report page.html",
];

/// Where the traces and recordings are. The last folder's files are of `cli/tests/noted.json` on 2 CPUs: `noted.ekirec` of mlfq, `noted.trace` of
/// the same run without what mlfq noted, as a kernel's is, and `looked.ekirec` of wfq, which looks at other CPUs. Of these, `cut.*`
/// end in the middle, and `damaged.*` have a byte that makes no sense.
const FOLDERS: &[&str] = &[
    "lab/fuzz/seeds/trace",
    "lab/fuzz/seeds/foreign",
    "lab/fuzz/seeds/recording",
    "hosts/replay/tests/recordings",
    "cli/tests/stored",
];

/// A long text is shown as its first and last lines; the digest covers the rest.
const HEAD: usize = 120;
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

/// What stands before how long a replay took, to the end of a line.
const TIMES: &[&str] = &[" replayed in ", "\"replay_s\": ", "\"replay_per_happened\": ", "\"replay_ns_per_call\": "];

/// What a command says, without how long it took and without the lines of source files that it names.
fn without_times(said: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(said) else { return said.to_owned() };
    let without_time = |line: &str| {
        let end = TIMES.iter().find_map(|mark| Some(line.find(mark)? + mark.len()));
        end.map_or_else(|| line.to_owned(), |end| format!("{}…\n", &line[..end]))
    };
    let text: String = text.split_inclusive('\n').map(without_time).collect();
    let mut pieces = text.split(".rs:");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, rest| text + ".rs:…" + rest.trim_start_matches(|c: char| c.is_ascii_digit())).into_bytes()
}

/// The columns and the rows of a file in Parquet, which has the version of its writer in it besides; of others, what is in them.
fn written(path: &Path) -> Option<Vec<u8>> {
    let Ok(parquet) = SerializedFileReader::new(File::open(path).ok()?) else { return fs::read(path).ok() };
    let metadata = parquet.metadata().file_metadata();
    let mut text = Vec::new();
    print_schema(&mut text, metadata.schema());
    text.extend(format!("{} rows\n", metadata.num_rows()).bytes());
    text.extend(parquet.get_row_iter(None).unwrap().flat_map(|row| format!("{}\n", row.unwrap()).into_bytes()));
    Some(text)
}

/// Versions that can be read are those of these files: a reader for one that no file has would be untried.
#[test]
fn a_file_of_each_version_of_a_format_is_stored() {
    let version = |file: &PathBuf| u32::from_le_bytes(fs::read(file).unwrap()[8..12].try_into().unwrap());
    for (ending, newest) in [("trace", TRACE_VERSION), ("ekirec", RECORDING_VERSION)] {
        let files = stored();
        let found: BTreeSet<u32> =
            files.iter().filter(|file| file.extension().is_some_and(|its| its == ending)).map(version).collect();
        assert_eq!(found, (1..=newest).collect(), "*.{ending}");
    }
}

#[test]
fn every_command_says_of_every_stored_trace_what_it_did() {
    let files = stored();
    assert!(files.len() >= 16, "{files:?}");
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let mut said = String::new();
        for command in COMMANDS {
            let directory = tempfile::tempdir().unwrap();
            for stored in &files {
                fs::copy(stored, directory.path().join(stored.file_name().unwrap())).unwrap();
            }
            let command = command.replace("FILE", name);
            writeln!(said, "$ ekiden {}", command.replace("&& ", "&& ekiden ")).unwrap();
            let mut code = 0;
            for command in command.split(" && ") {
                let mut ekiden = Command::new(env!("CARGO_BIN_EXE_ekiden"));
                let output = ekiden.args(command.split(' ')).current_dir(directory.path()).output().unwrap();
                code = output.status.code().unwrap();
                said += &shortened(&without_times(&output.stdout));
                said += &shortened(&without_times(&output.stderr));
                if code != 0 {
                    break;
                }
            }
            // The page has scripts and styles in it, which have tests of their own.
            if let Some(written) = written(&directory.path().join("out")) {
                writeln!(said, "--- out").unwrap();
                said += &shortened(&written);
            }
            writeln!(said, "--- exit code {code}\n").unwrap();
        }
        expect_file![format!("goldens/{name}.txt")].assert_eq(&said);
    }
}
