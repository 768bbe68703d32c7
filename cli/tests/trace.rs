//! `ekiden trace` as people use it: pieces and other formats, little memory, and no file that is half.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    process::{Command, Output},
};

use ekiden_trace::{Header, Host, Reader, Record, Trace, What, names};
use parquet::{
    file::{reader::FileReader, serialized_reader::SerializedFileReader},
    record::RowAccessor,
};
use serde_json::Value;
use tempfile::TempDir;

/// A directory with a trace in it, `out`.
struct Traced(TempDir);

impl Traced {
    /// The trace of a simulation.
    fn of(load: &str) -> Self {
        let traced = Self(tempfile::tempdir().unwrap());
        traced.good(&["sim", load, "-p", "wfq", "--trace", "out"]);
        traced
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs something by a shell first, in the same process.
    fn run_after(&self, before: &str, args: &[&str]) -> Output {
        let script = format!("{before}\nexec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_ekiden")]).args(args).current_dir(self.path());
        command.output().unwrap()
    }

    /// Returns what it printed; it must succeed.
    fn good(&self, args: &[&str]) -> String {
        let output = self.run_after("", args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the exit code and the error.
    fn bad(&self, args: &[&str]) -> (i32, String) {
        let output = self.run_after("", args);
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn record(time_ns: u64, cpu: u32, what: What, pid: u32, value: u64) -> Record {
    Record { time_ns, cpu, what, pid, value }
}

/// A task with a name and a nice value runs for a while on the last of 65 CPUs.
fn small() -> Traced {
    let mut trace = Trace::new(&Header::of(&ekiden::Topology::flat(65)));
    trace.push(record(0, 64, What::New, 7, 1));
    for (piece, value) in (0..).zip(names("a,long \"name\"")) {
        trace.push(record(0, piece, What::Name, 7, value));
    }
    trace.push(record(0, 64, What::Nice, 7, -5_i64 as u64));
    trace.push(record(0, 64, What::Affinity, 7, 64));
    trace.push(record(0, 0, What::Allowed, 7, u64::MAX));
    trace.push(record(0, 1, What::Allowed, 7, 1));
    trace.push(record(5, 64, What::Enqueue, 7, 0));
    trace.push(record(8, 64, What::Run, 7, 3_000));
    for (piece, value) in (0..).zip(names("ahead_tasks")) {
        trace.push(record(8, piece, What::NoteName, 7, value));
    }
    trace.push(record(8, 64, What::Note, 7, 3));
    trace.push(record(9, 64, What::Exit, 7, 0));
    trace.push(record(9, 64, What::Idle, 0, 0));
    let traced = Traced(tempfile::tempdir().unwrap());
    fs::write(traced.path().join("out"), trace.as_bytes()).unwrap();
    traced
}

#[test]
fn a_table_has_a_row_for_each_record() {
    let table = small().good(&["trace", "export", "out", "-", "--format", "csv"]);
    let expected = "\
time_ns,cpu,what,pid,task,value,piece,note
0,64,new,7,\"a,long \"\"name\"\"\",1,,
0,64,nice,7,\"a,long \"\"name\"\"\",-5,,
0,64,affinity,7,\"a,long \"\"name\"\"\",64,,
0,,allowed,7,\"a,long \"\"name\"\"\",18446744073709551615,0,
0,,allowed,7,\"a,long \"\"name\"\"\",1,1,
5,64,enqueue,7,\"a,long \"\"name\"\"\",0,,
8,64,run,7,\"a,long \"\"name\"\"\",3000,,
8,64,note,7,\"a,long \"\"name\"\"\",3,,ahead_tasks
9,64,exit,7,\"a,long \"\"name\"\"\",0,,
9,64,idle,,,0,,
";
    assert_eq!(table, expected);
    let parquet = small();
    parquet.good(&["trace", "export", "out", "t.parquet"]);
    let parquet = SerializedFileReader::new(File::open(parquet.path().join("t.parquet")).unwrap()).unwrap();
    let notes = parquet.get_row_iter(None).unwrap().filter_map(|row| row.unwrap().get_string(7).ok().cloned());
    assert_eq!(notes.collect::<Vec<_>>(), ["ahead_tasks"]);
}

#[test]
fn a_note_is_a_line_and_stays_with_its_name_in_a_piece() {
    let traced = small();
    let line = "         0.008 [ 64] note     pid 7 ahead_tasks 3";
    let has_line = |trace: &str| traced.good(&["trace", "cat", trace]).lines().filter(|one| *one == line).count() == 1;
    assert!(has_line("out"), "{}", traced.good(&["trace", "cat", "out"]));
    assert!(!traced.good(&["trace", "cat", "out"]).contains("notename"));
    traced.good(&["trace", "cut", "out", "-o", "piece", "--cpu", "64"]);
    assert!(has_line("piece"));
    traced.good(&["trace", "cut", "out", "-o", "other", "--cpu", "0"]);
    let kinds: Value = serde_json::from_str(&traced.good(&["trace", "info", "other", "--json"])).unwrap();
    assert_eq!((&kinds["kinds"]["note"], &kinds["kinds"]["notename"]), (&Value::Null, &Value::Null));
}

#[test]
fn what_a_policy_notes_is_in_traces_recordings_and_replays() {
    let traced = Traced(tempfile::tempdir().unwrap());
    let output = traced
        .run_after("", &["sim", "hogs:count=5:ms=30", "-p", "mlfq", "--trace", "out", "--record", "calls", "--debug"]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let notes = said.lines().filter(|line| line.contains(": down_to_level ")).count();
    assert!(notes > 5, "{said}");
    let noted = |file: &str| {
        let text = traced.good(&["trace", "cat", file]);
        text.lines().filter(|line| line.contains(" down_to_level ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((noted("out").len(), noted("calls").len()), (notes, notes));
    assert!(noted("calls").iter().all(|line| line.contains(", notes down_to_level ")));

    // A trace without them gets them from the recording.
    let reader = Reader::new(File::open(traced.path().join("out")).unwrap()).unwrap();
    let mut without = Trace::new(reader.header());
    let is_other = |record: &Record| !matches!(record.what, What::Note | What::NoteName);
    reader.map(Result::unwrap).filter(is_other).for_each(|record| without.push(record));
    fs::write(traced.path().join("without"), without.as_bytes()).unwrap();
    assert_eq!(noted("without").len(), 0);
    traced.good(&["trace", "notes", "without", "calls", "-o", "both"]);
    assert_eq!(noted("both"), noted("out"));
    let (code, error) = traced.bad(&["trace", "notes", "without", "out", "-o", "x"]);
    assert!(code == 1 && error.contains("this is no recording"), "{error}");
    // A recording that is cut off counts up to its end, and says that the rest is missing.
    let bytes = fs::read(traced.path().join("calls")).unwrap();
    fs::write(traced.path().join("torn"), &bytes[..bytes.len() - 5]).unwrap();
    let (code, error) = traced.bad(&["trace", "notes", "without", "torn", "-o", "most"]);
    assert!(code == 1 && error.contains("cut off at byte") && error.contains("most has what"), "{error}");
    assert_eq!(noted("most"), noted("out"));

    let output = traced.run_after("", &["replay", "calls", "--debug"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains("): down_to_level ")).count(), notes, "{said}");
}

#[test]
fn all_tables_say_the_same() {
    let traced = Traced::of("churn");
    for file in ["t.csv", "t.jsonl", "t.parquet"] {
        traced.good(&["trace", "export", "out", file]);
    }
    let lines = fs::read_to_string(traced.path().join("t.jsonl")).unwrap();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let info: Value = serde_json::from_str(&traced.good(&["trace", "info", "out", "--json"])).unwrap();
    assert_eq!(rows.len() as u64, info["records"].as_u64().unwrap() - info["kinds"]["name"].as_u64().unwrap());

    let mut csv = csv::Reader::from_path(traced.path().join("t.csv")).unwrap();
    let columns: Vec<String> = csv.headers().unwrap().iter().map(str::to_owned).collect();
    let parquet = SerializedFileReader::new(File::open(traced.path().join("t.parquet")).unwrap()).unwrap();
    let mut packed = parquet.get_row_iter(None).unwrap();
    for (row, record) in rows.iter().zip(csv.records()) {
        let text = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let expected: Vec<String> = columns.iter().map(|column| text(&row[column])).collect();
        assert_eq!(record.unwrap().iter().collect::<Vec<_>>(), expected);
        let packed = packed.next().unwrap().unwrap();
        assert_eq!(packed.get_long(0).ok(), row["time_ns"].as_i64());
        assert_eq!(packed.get_int(1).ok().map(i64::from), row["cpu"].as_i64());
        assert_eq!(packed.get_string(2).ok().map(String::as_str), row["what"].as_str());
        assert_eq!(packed.get_int(3).ok().map(i64::from), row["pid"].as_i64());
        assert_eq!(packed.get_string(4).ok().map(String::as_str), row["task"].as_str());
        assert_eq!(packed.get_long(5).ok(), row["value"].as_i64());
        assert_eq!(packed.get_int(6).ok().map(i64::from), row["piece"].as_i64());
    }
    assert!(packed.next().is_none());
}

#[test]
fn a_piece_is_a_trace_for_every_command() {
    let traced = Traced::of("messaging");
    let (from, until) = ("300us", "0.6ms");
    traced.good(&["trace", "cut", "out", "-o", "piece", "--from", from, "--until", until, "--cpu", "0-2"]);
    let info: Value = serde_json::from_str(&traced.good(&["trace", "info", "piece", "--json"])).unwrap();
    assert_eq!(info["header"]["begins_ns"], 300_000);
    assert!(info["until_ns"].as_u64().unwrap() < 300_000, "{info}");
    assert!(traced.good(&["trace", "info", "piece"]).contains("from its 300 us on"));
    assert!(traced.good(&["check", "piece"]).contains("every promise was kept"));
    traced.good(&["view", "piece", "--report", "piece.html"]);
    traced.good(&["trace", "export", "piece", "piece.pftrace"]);

    // The lines of that time, and of one CPU, are equal.
    let later = |line: &str| -> String {
        let (time, rest) = line.trim_start().split_once(' ').unwrap();
        let (us, ns) = time.split_once('.').unwrap();
        format!("{:>10}.{ns}{rest}", us.parse::<u64>().unwrap() + 300)
    };
    let of_whole = traced.good(&["trace", "cat", "out", "--from", from, "--until", until, "--cpu", "1"]);
    let of_piece = traced.good(&["trace", "cat", "piece", "--cpu", "1", "--from", "1ns"]);
    let whole: Vec<String> = of_whole.lines().map(|line| line.trim_start().replacen(' ', "", 1)).collect();
    let piece: Vec<String> = of_piece.lines().map(|line| later(line).trim_start().to_owned()).collect();
    // Tasks that go to CPU 3 block in the piece.
    let blocks: Vec<&String> = piece.iter().filter(|line| !whole.contains(line)).collect();
    assert!(whole.len() > 20 && whole.iter().skip(5).all(|line| piece.contains(line)), "{whole:#?}\n{piece:#?}");
    assert!(blocks.iter().all(|line| line.contains("] block")), "{blocks:#?}");
}

#[test]
fn a_compressed_trace_is_read_as_any_other() {
    let traced = Traced::of("churn");
    traced.good(&["sim", "churn", "-p", "wfq", "--trace", "out.zst"]);
    let size = |name: &str| fs::metadata(traced.path().join(name)).unwrap().len();
    assert!(size("out.zst") < size("out") / 2);
    let all = traced.good(&["trace", "cat", "out"]);
    assert!(traced.good(&["trace", "cat", "out.zst"]) == all && all.lines().count() > 1_000);
    traced.good(&["trace", "cut", "out.zst", "-o", "again.zst"]);
    fs::rename(traced.path().join("again.zst"), traced.path().join("again")).unwrap();
    assert_eq!(traced.good(&["trace", "cat", "again"]), all);
    assert!(traced.good(&["check", "again"]).contains("every promise was kept"));
}

#[test]
fn a_recording_of_calls_is_read_too() {
    let traced = Traced::of("churn");
    traced.good(&["sim", "churn", "-p", "wfq", "--record", "calls"]);
    let info: Value = serde_json::from_str(&traced.good(&["trace", "info", "calls", "--json"])).unwrap();
    let of_trace: Value = serde_json::from_str(&traced.good(&["trace", "info", "out", "--json"])).unwrap();
    assert_eq!((&info["header"]["policy"], &info["lost"]), (&"wfq".into(), &0.into()));
    assert_eq!(info["tasks"], of_trace["tasks"]);
    assert_eq!(info["kinds"]["task_new"], of_trace["kinds"]["new"]);
    assert_eq!(info["kinds"]["task_yield"], of_trace["kinds"]["yield"]);
    // A task that is picked starts to run, or continues.
    let text = traced.good(&["trace", "cat", "calls"]);
    let picks = text.lines().filter(|line| line.contains("pick_next_task") && line.contains("-> pid")).count();
    let kinds = |name: &str| of_trace["kinds"][name].as_u64().unwrap();
    assert_eq!(picks as u64, kinds("run") + kinds("keep"));
    let of_one = traced.good(&["trace", "cat", "calls", "--pid", "1003", "--from", "5ms", "--cpu", "0-2"]);
    assert!(of_one.lines().count() > 5, "{of_one}");
    assert!(of_one.lines().all(|line| line.contains("pid 1003") && !line.contains("[  3]")), "{of_one}");

    traced.good(&["trace", "export", "calls", "calls.csv"]);
    traced.good(&["trace", "export", "calls", "calls.jsonl"]);
    let rows = csv::Reader::from_path(traced.path().join("calls.csv")).unwrap().into_records().count();
    let lines = fs::read_to_string(traced.path().join("calls.jsonl")).unwrap();
    assert_eq!((rows, lines.lines().count()), (text.lines().count(), text.lines().count()));
    let picked = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["picked_pid"].clone());
    assert_eq!(picked.filter(|pid| !pid.is_null()).count(), picks);

    let mut bytes = fs::read(traced.path().join("calls")).unwrap();
    bytes.truncate(bytes.len() - 5);
    fs::write(traced.path().join("calls"), bytes).unwrap();
    let (code, error) = traced.bad(&["trace", "info", "calls"]);
    assert!(code == 1 && error.contains("cut off at byte"), "{error}");
    // The calls before that are exported: here only the end of the last block is missing.
    for (whole, name) in [("calls.csv", "cut.csv"), ("calls.jsonl", "cut.jsonl")] {
        let (code, error) = traced.bad(&["trace", "export", "calls", name]);
        assert!(
            code == 1 && error.contains("cut off at byte") && error.contains(&format!("{name} has what")),
            "{error}"
        );
        let [whole, exported] = [whole, name].map(|name| fs::read_to_string(traced.path().join(name)).unwrap());
        let torn = exported.strip_prefix(&whole).unwrap_or_else(|| panic!("{exported}"));
        assert!(torn.contains("torn") && torn.lines().count() == 1, "{torn}");
    }
}

#[test]
fn a_recording_of_calls_tells_which_cpus_were_considered() {
    let traced = Traced::of("churn");
    traced.good(&["sim", "churn", "-p", "wfq", "--record", "calls"]);
    let all = |name: &str| {
        let reader = Reader::new(File::open(traced.path().join(name)).unwrap()).unwrap();
        (reader.header().clone(), reader.map(Result::unwrap).collect::<Vec<Record>>())
    };
    let (header, records) = all("out");
    let considered = |records: &[Record]| {
        let sets = records.iter().filter(|record| record.what == What::Considered);
        sets.fold(BTreeMap::<u64, u64>::new(), |mut all, set| {
            *all.entry(set.time_ns).or_default() |= set.value;
            all
        })
    };
    let (of_sets, others): (Vec<Record>, Vec<Record>) =
        records.into_iter().partition(|record| record.what == What::Considered);
    assert!(of_sets.len() > 10, "{}", of_sets.len());
    let write = |name: &str, header: &Header| {
        let mut trace = Trace::new(header);
        others.iter().for_each(|record| trace.push(*record));
        fs::write(traced.path().join(name), trace.as_bytes()).unwrap();
    };
    write("without", &header);
    traced.good(&["trace", "considered", "without", "calls", "-o", "both"]);
    let (_, both) = all("both");
    assert_eq!(considered(&both), considered(&of_sets));

    // Traces that are of another time, or might be.
    write("kernel", &Header { host: Host::Kernel, ..header.clone() });
    write("small", &Header { cpus: header.cpus[..2].to_vec(), ..header });
    for (trace, why) in [("kernel", "one of the two is of a kernel"), ("small", "another number of CPUs")] {
        let (code, error) = traced.bad(&["trace", "considered", trace, "calls", "-o", "x"]);
        assert!(code == 1 && error.contains(why), "{error}");
    }
    assert!(!traced.files().contains(&"x".to_owned()));
}

#[test]
fn a_million_records_take_little_memory() {
    const PAIRS: u32 = 100;
    const RECORDS: u32 = 1_000_000;
    let mut trace = Trace::new(&Header::of(&ekiden::Topology::flat(2)));
    for pid in 1..=2 * PAIRS {
        trace.push(record(0, pid % 2, What::New, pid, 0));
        trace.push(record(0, 0, What::Name, pid, names("pair").next().unwrap()));
    }
    for turn in 0..RECORDS / 4 {
        let (time_ns, cpu, pid) = (u64::from(turn) * 1_000, turn % 2, turn % (2 * PAIRS) + 1);
        trace.push(record(time_ns, cpu, What::Wake, pid, 0));
        trace.push(record(time_ns, cpu, What::Enqueue, pid, 0));
        trace.push(record(time_ns + 1, cpu, What::Run, pid, 3_000));
        trace.push(record(time_ns + 900, cpu, What::Block, pid, 0));
    }
    let traced = Traced(tempfile::tempdir().unwrap());
    fs::write(traced.path().join("out"), trace.as_bytes()).unwrap();
    assert!(trace.as_bytes().len() > 23_000_000);
    // With this many kilobytes of data; Parquet wants some more, for the rows that it writes at once.
    let run = |kilobytes: u32, args: &[&str]| traced.run_after(&format!("ulimit -d {kilobytes}"), args);
    for (kilobytes, args) in [
        (8_000, &["trace", "info", "out"][..]),
        (8_000, &["trace", "cut", "out", "-o", "piece.zst", "--from", "1ms", "--pid", "5"]),
        (8_000, &["trace", "export", "out", "out.csv"]),
        (8_000, &["trace", "export", "out", "out.pftrace"]),
        (22_000, &["trace", "export", "out", "out.parquet"]),
        (8_000, &["check", "out"]),
    ] {
        let output = run(kilobytes, args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // The limit is one: what keeps a trace in memory does not get by with it.
    assert!(!run(8_000, &["view", "out", "--report", "out.html"]).status.success());
}

#[test]
fn where_there_is_no_room_nothing_is_left_and_what_was_there_stays() {
    let traced = Traced::of("churn");
    fs::write(traced.path().join("t.csv"), "before").unwrap();
    let before = traced.files();
    // Blocks of 512 bytes; the signal would end it before it can tidy up.
    let no_room = "trap '' XFSZ; ulimit -f 16";
    for args in [
        &["trace", "export", "out", "t.csv"][..],
        &["trace", "export", "out", "t.parquet"],
        &["trace", "cut", "out", "-o", "t.piece"],
        &["sim", "churn", "--trace", "t.trace"],
        &["view", "out", "--report", "t.html"],
    ] {
        let output = traced.run_after(no_room, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("too large"), "{args:?}: {error}");
        assert_eq!(traced.files(), before, "{args:?}");
    }
    assert_eq!(fs::read(traced.path().join("t.csv")).unwrap(), b"before");
    // A device is written to, not replaced.
    assert_eq!(traced.bad(&["trace", "export", "out", "/dev/full", "--format", "jsonl"]).0, 113);
    assert!(fs::metadata("/dev/full").unwrap().file_type() != fs::metadata(traced.path()).unwrap().file_type());
}

#[test]
fn whatever_opens_a_trace_opens_recordings_of_trace_cmd_and_perf() {
    let traced = Traced(tempfile::tempdir().unwrap());
    for name in ["small.dat", "small.data"] {
        let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/fuzz/seeds/foreign").join(name);
        fs::copy(seed, traced.path().join(name)).unwrap();
        let info: Value = serde_json::from_str(&traced.good(&["trace", "info", name, "--json"])).unwrap();
        assert_eq!((&info["header"]["host"], &info["lost"]), (&"kernel".into(), &0.into()));
        assert!(info["kinds"]["run"].as_u64() > Some(50), "{info}");
        // As a trace it is the same.
        traced.good(&["trace", "cut", name, "-o", "out"]);
        let cut: Value = serde_json::from_str(&traced.good(&["trace", "info", "out", "--json"])).unwrap();
        assert_eq!(cut["kinds"], info["kinds"]);
        // What other commands say of them is in `goldens`.
        let waits = traced.good(&["runqlat", "--trace", name, "--trace", "out", "--report", "waits.html", "--json"]);
        let waits: Value = serde_json::from_str(&waits).unwrap();
        assert!(waits[0]["count"].as_u64() > Some(0) && waits[0]["buckets"] == waits[1]["buckets"], "{waits}");
        assert_eq!(fs::read_to_string(traced.path().join("waits.html")).unwrap().matches("<figure>").count(), 2);
    }
    let bytes = fs::read(traced.path().join("small.dat")).unwrap();
    fs::write(traced.path().join("short.dat"), &bytes[..bytes.len() / 2]).unwrap();
    fs::write(traced.path().join("packed"), zstd::encode_all(&bytes[..], 1).unwrap()).unwrap();
    for (args, why) in [
        (["check", "short.dat"], "damaged or cut off at byte"),
        (["view", "short.dat"], "damaged or cut off at byte"),
        (["check", "packed"], "unpack it first"),
    ] {
        let (code, error) = traced.bad(&args);
        assert!(code == 1 && error.contains(why), "{args:?}: {code} {error}");
    }
}

#[test]
fn what_is_no_trace_or_not_in_it_is_refused_with_a_reason() {
    let traced = Traced::of("churn");
    let mut bytes = fs::read(traced.path().join("out")).unwrap();
    bytes.pop();
    fs::write(traced.path().join("short"), &bytes).unwrap();
    fs::write(traced.path().join("text"), "no trace").unwrap();
    let before = traced.files();
    for (args, code, why) in [
        (&["trace", "cut", "short", "-o", "x"][..], 1, "damaged at byte"),
        (&["trace", "export", "text", "x.csv"], 1, "does not begin with EKITRACE"),
        (&["trace", "cut", "out", "-o", "x", "--from", "2min"], 1, "before the piece begins"),
        (&["trace", "cut", "out", "-o", "x", "--from", "2ms", "--until", "1ms"], 2, "earlier than --until"),
        (&["trace", "cut", "out", "-o", "x", "--from", "2"], 2, "as in 12.5ms"),
        (&["trace", "cut", "out", "-o", "x", "--cpu", "77"], 2, "some of 0-3"),
        (&["trace", "export", "out", "x.xls"], 2, ".parquet"),
        (&["trace", "considered", "out", "text", "-o", "x"], 1, "text"),
        (&["trace", "considered", "text", "out", "-o", "x"], 1, "does not begin with EKITRACE"),
        (&["trace", "export", "out", "-"], 2, "--format"),
        (&["trace", "export", "out", "no/such/directory.csv"], 1, "cannot write"),
    ] {
        let (found, error) = traced.bad(args);
        assert!(found == code && error.contains(why), "{args:?}: {found} {error}");
        assert_eq!(traced.files(), before, "{args:?}");
    }
    // The records before the damage are exported.
    traced.good(&["trace", "export", "out", "whole.jsonl"]);
    let rows = |name: &str| fs::read_to_string(traced.path().join(name)).unwrap().lines().count();
    for name in ["x.jsonl", "x.csv", "x.parquet", "x.pftrace"] {
        let (code, error) = traced.bad(&["trace", "export", "short", name]);
        assert!(
            code == 1 && error.contains("damaged at byte") && error.contains(&format!("{name} has what")),
            "{error}"
        );
    }
    // The last record is lost, and of the table its heading is a line.
    assert_eq!((rows("x.jsonl"), rows("x.csv")), (rows("whole.jsonl") - 1, rows("whole.jsonl")));
}
