//! The tables of docs/policies.md, which say what its sentences rest on: each is simulated anew, and has to be what is written there.
//! `UPDATE_EXPECT=1 cargo test -p ekiden-cli --test guide` writes them.

use std::{fmt::Write, fs, path::Path, process::Command};

use expect_test::expect_file;
use serde_json::Value;

/// A table: what is simulated, and whose waits are counted.
struct Table {
    /// What stands in the line before it.
    name: &'static str,
    /// A load, and on what.
    sim: &'static str,
    /// By their name; all if there is none.
    tasks: Option<&'static str>,
    policies: &'static [&'static str],
}

const TABLES: &[Table] = &[
    Table {
        name: "requests",
        sim: "requests:workers=50:requests=5000:every_us=16:short_us=4:long_permille=9 --cpus 2",
        tasks: None,
        policies: &["shinjuku", "eevdf", "wfq", "cfs", "bpfland", "fifo"],
    },
    Table {
        name: "workers",
        sim: "schbench:rounds=100+hogs:count=16:ms=300",
        tasks: Some("worker-0-0"),
        policies: &["bpfland", "eevdf", "wfq", "cfs", "mlfq", "shinjuku"],
    },
    Table {
        name: "desktop",
        sim: "desktop:ms=3000",
        tasks: Some("input"),
        policies: &["bpfland", "eevdf", "wfq", "cfs", "mlfq", "central-fifo", "sjf", "global-fifo", "shinjuku"],
    },
];

fn ekiden(directory: &Path, arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_ekiden")).args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

impl Table {
    fn text(&self, directory: &Path) -> String {
        let mut text = String::from(
            "| policy | waits | 50 %, µs | 90 % | 99 % | longest | all is done after, ms | switches |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for policy in self.policies {
            let trace = format!("{}-{policy}.trace", self.name);
            let mut sim = vec!["sim", "--json", "-p", policy, "--trace", &trace];
            sim.extend(self.sim.split(' '));
            let done = ekiden(directory, &sim);
            let mut runqlat = vec!["runqlat", "--json", "--trace", &trace];
            runqlat.extend(self.tasks.into_iter().flat_map(|tasks| ["-c", tasks]));
            let waits = &ekiden(directory, &runqlat)[0];
            assert_ne!(waits["count"], 0, "no task is called {:?}", self.tasks);
            let us = |key: &str| waits[key].as_f64().unwrap() / 1e3;
            let switches = |task: &Value| {
                task["voluntary_switches"].as_u64().unwrap() + task["involuntary_switches"].as_u64().unwrap()
            };
            let switches: u64 = done["tasks"].as_array().unwrap().iter().map(switches).sum();
            writeln!(
                text,
                "| `{policy}` | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} | {switches} |",
                waits["count"],
                us("p50_ns"),
                us("p90_ns"),
                us("p99_ns"),
                us("max_ns"),
                done["wall_ns"].as_f64().unwrap() / 1e6,
            )
            .unwrap();
        }
        text
    }

    /// Puts the table where the text has it.
    fn put(&self, guide: &str, table: &str) -> String {
        let begin = format!("<!-- table: {} -->\n\n", self.name);
        let (before, rest) = guide.split_once(&begin).unwrap_or_else(|| panic!("there is no {begin}"));
        let after = rest.trim_start_matches(|c| c != '\n').split_once("\n\n").map_or("", |(_, after)| after);
        format!("{before}{begin}{table}\n{after}")
    }
}

#[test]
fn the_guide_has_what_is_simulated() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/policies.md");
    let directory = tempfile::tempdir().unwrap();
    let guide = fs::read_to_string(&path).unwrap();
    let new = TABLES.iter().fold(guide, |guide, table| table.put(&guide, &table.text(directory.path())));
    expect_file![path].assert_eq(&new);
}
