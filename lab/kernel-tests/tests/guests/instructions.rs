//! How many instructions a switch takes, which does not depend on the machine: a change that makes one dearer, or cheaper, is to say so.
//! `EKIDEN_INSTRUCTIONS=write` puts what was counted into the table, `instructions.txt` beside this file.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
};

tests! {
    Machine::Exact => {
        15 a_round_trip_takes_as_many_instructions_as_the_table_says,
    }
}

/// The schedulers in the table: the kernel's own, and policies with the flight recorder on.
const SCHEDULERS: [&str; 3] = ["kernel", "fifo", "wfq"];

/// How far a figure may be from that of the table, as a part of it.
const SLACK: f64 = 0.01;

/// Instructions of a round trip by scheduler and place, and the kernel in which they were counted.
#[derive(Debug, PartialEq)]
struct Table {
    kernel: String,
    figures: Vec<(String, String, f64)>,
}

impl Table {
    fn file() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/instructions.txt")
    }

    /// A line is a scheduler, a place and a number, with a comma between.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let kernel = lines.next()?.to_owned();
        let figure = |line: &str| {
            let mut words = line.split(", ");
            Some((words.next()?.to_owned(), words.next()?.to_owned(), words.next()?.parse().ok()?))
        };
        Some(Self { kernel, figures: lines.map(figure).collect::<Option<_>>()? })
    }

    fn to_text(&self) -> String {
        let mut text = String::from(
            "# Instructions of a round trip of a byte through two pipes, user mode of programs built for debugging included,\n\
             # with the flight recorder on. EKIDEN_INSTRUCTIONS=write writes this file.\n",
        );
        text.push_str(&self.kernel);
        text.push('\n');
        for (scheduler, place, instructions) in &self.figures {
            writeln!(text, "{scheduler}, {place}, {instructions:.0}").unwrap();
        }
        text
    }

    fn of(&self, scheduler: &str, place: &str) -> Option<f64> {
        self.figures.iter().find(|(of, at, _)| of == scheduler && at == place).map(|(.., instructions)| *instructions)
    }

    /// Counts that differ too much. In another kernel all may take more or less, a policy as much more than the kernel's own scheduler as
    /// in the table.
    fn differences(&self, counted: &Self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (scheduler, place, instructions) in &counted.figures {
            let own = |table: &Self| if self.kernel == counted.kernel { Some(0.0) } else { table.of("kernel", place) };
            let expected = (|| Some(self.of(scheduler, place)? - own(self)? + own(counted)?))();
            match expected {
                Some(expected) if (instructions - expected).abs() <= SLACK * expected => {}
                Some(expected) => {
                    wrong.push(format!("{scheduler}, {place}: {instructions:.0} instead of {expected:.0}"));
                }
                None => wrong.push(format!("{scheduler}, {place}: the table has no such line")),
            }
        }
        wrong
    }
}

fn a_round_trip_takes_as_many_instructions_as_the_table_says(guest: &TestGuest) {
    // The guest's own start-up work is over by then.
    guest.shell("sleep 12");
    let mut counted = Table { kernel: guest.shell("uname -r").trim().to_owned(), figures: Vec::new() };
    for scheduler in SCHEDULERS {
        let policy = if scheduler == "kernel" { String::new() } else { format!("--policy {scheduler}") };
        for report in guest.guest_test(&format!("trips --modules /lab {policy}")) {
            println!("{scheduler} {report}");
            let runs = report["scheduler"].as_str().map_or("kernel", |name| name.trim_start_matches("ekiden_"));
            assert_eq!(runs, scheduler, "{report}");
            let place = report["place"].as_str().unwrap().to_owned();
            counted.figures.push((scheduler.to_owned(), place, report["ns"].as_f64().unwrap()));
        }
    }
    let text = counted.to_text();
    println!("{text}");
    if std::env::var("EKIDEN_INSTRUCTIONS").is_ok_and(|what| what == "write") {
        return fs::write(Table::file(), text).unwrap();
    }
    let table = Table::parse(&fs::read_to_string(Table::file()).unwrap()).expect("the table can be read");
    let wrong = table.differences(&counted);
    let next = "if that is meant, run it with EKIDEN_INSTRUCTIONS=write and say why in the commit";
    assert!(wrong.is_empty(), "{}\n{next}; counted:\n{text}", wrong.join("\n"));
}
