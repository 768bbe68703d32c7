//! Papers/004, section 4.4: requests to RocksDB, of which most are short and a few very long.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_bench::number;
use ekiden_build::{Checkout, doctor::LIBRARIES};
use ekiden_workload::real::requests::{Measured, Times};
use serde::{Deserialize, Serialize};

use super::{Cos, hosts::Host};
use crate::{
    failure::{Exit, Failure},
    machine::{program, refuse_by_sudo},
    progress::Progress,
};

/// The program, and where it is in a checkout.
const PROGRAM: &str = "ekiden-rocksdb";
const DIRECTORY: &str = "workload/rocksdb";

/// Says where the library is.
const LIBRARY_DIRECTORY: &str = "ROCKSDB_LIB_DIR";

/// The library as it is linked with.
const LIBRARY: &str = "librocksdb.so";

/// CPUs besides those of the workers, as in the paper: requests are sent from one, and another is left for the agent and for everything else.
pub(super) const APART: u32 = 2;

/// What a GET and a range query take in the papers, in microseconds.
const GET_US: u64 = 4;
const RANGE_US: u64 = 10_000;

/// What only this part has.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub(super) struct RocksDb {
    /// RocksDB: requests that arrive, in percent of what the workers' CPUs can answer; one load after another
    #[arg(requires = "part", long, value_name = "PERCENT", value_delimiter = ',', default_value = "10,50,80,95", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    loads: Vec<u32>,
    /// RocksDB: workers; under the kernel's own scheduler each of their CPUs has one
    #[arg(requires = "part", long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,
    /// RocksDB: for how long requests of each load count; they arrive a fifth as long before
    #[arg(requires = "part", long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    ms: u64,
    /// RocksDB: requests take so many times what they take in the papers, as a switch costs more in a guest, too
    #[arg(requires = "part", long, value_name = "TIMES", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    stretch: u64,
    /// RocksDB: threads besides that use all the CPU time that they can have; the paper has 7
    #[arg(requires = "part", long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    others: u32,
}

/// What `ekiden-rocksdb` prints.
#[derive(Deserialize)]
struct Printed {
    measured: Vec<Measured>,
}

/// Figures of one load under one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) host: Host,
    #[serde(flatten)]
    pub(crate) measured: Measured,
}

/// Builds the program for a guest, as far as it is not up to date.
pub(super) fn build(progress: &mut Progress) -> Result<PathBuf> {
    let named = std::env::var_os(LIBRARY_DIRECTORY).map(PathBuf::from);
    let directory = library_directory(named, &LIBRARIES.map(Path::new))?;
    refuse_by_sudo(PROGRAM)?;
    progress.step(format!("building {PROGRAM}"));
    let variables = [(LIBRARY_DIRECTORY, directory.as_path())];
    Checkout::find()?.build_apart(DIRECTORY, &variables, &mut progress.sink()).map_err(|error| {
        if error.to_string().contains("libclang") {
            let message = "RocksDB's header cannot be read without libclang; install clang (on Debian 12 clang-19), or say where the library is \
                           with LIBCLANG_PATH";
            return Failure::new(Exit::Missing, message).into();
        }
        error.into()
    })
}

/// The directory with the library: the named one, or the first that has it.
fn library_directory(named: Option<PathBuf>, usual: &[&Path]) -> Result<PathBuf> {
    let mut directories = named.iter().map(PathBuf::as_path).chain(usual.iter().copied().filter(|_| named.is_none()));
    let found = directories.find(|directory| directory.join(LIBRARY).exists());
    found.map(Path::to_owned).ok_or_else(|| {
        let message = format!(
            "there is no {LIBRARY} on this machine; install librocksdb-dev (on Fedora rocksdb-devel, on Arch rocksdb), as `scripts/prepare tests` \
             does, or say in which directory it is with {LIBRARY_DIRECTORY}"
        );
        Failure::new(Exit::Missing, message).into()
    })
}

impl RocksDb {
    /// What the program is told under a host.
    fn told(&self, host: Host) -> Vec<String> {
        let Self { workers, ms, stretch, others, .. } = self;
        let loads: Vec<String> = self.loads.iter().map(u32::to_string).collect();
        let workers = if host == Host::Own { "--bound".to_owned() } else { format!("--workers={workers}") };
        vec![
            "--json".to_owned(),
            format!("--loads={}", loads.join(",")),
            workers,
            format!("--apart={APART}"),
            format!("--ms={ms}"),
            format!("--get-us={}", GET_US * stretch),
            format!("--range-us={}", RANGE_US * stretch),
            format!("--others={others}"),
        ]
    }

    /// What the table is of, in words.
    pub(super) fn heading(&self, cpus: u32) -> String {
        let Self { workers, ms, stretch, others, .. } = self;
        let beside = if *others == 0 { String::new() } else { format!(" beside {others} other threads") };
        format!(
            "Requests to RocksDB for {ms} ms{beside}, {workers} workers on {} CPUs, under the kernel's own one on each; papers/004: 9 CPUs, 10 to 250 thousand a second\n\
             GETs take {} us and 0.5 % range queries {} ms, {stretch} times the papers'; in brackets: ÷ the kernel's own",
            cpus - APART,
            GET_US * stretch,
            RANGE_US * stretch / 1_000,
        )
    }
}

/// Measures under one host; nothing if the policy was taken out.
pub(super) fn measure(cos: &Cos, host: Host) -> Result<Option<Vec<Point>>> {
    let Some(printed) = host.run(cos.policy(), None, &program(PROGRAM), &cos.rocksdb.told(host))? else {
        return Ok(None);
    };
    let Printed { measured } = serde_json::from_str(&printed).context("ekiden-rocksdb says something strange")?;
    Ok(Some(measured.into_iter().map(|measured| Point { host, measured }).collect()))
}

/// The first line of the table.
pub(super) const HEADING: [&str; 11] = [
    "RocksDB, us",
    "load",
    "a second",
    "answered",
    "50 %",
    "99 %",
    "99.5 %",
    "99.9 %",
    "longest",
    "GETs, 99 %",
    "99.9 %",
];

/// A line of the table. Times are divided by those that the kernel's own scheduler takes with the same load.
pub(super) fn cells(point: &Point, all: &[Point], policy: &str) -> Vec<String> {
    let is_own = |other: &&Point| other.host == Host::Own && other.measured.load_percent == point.measured.load_percent;
    let own = all.iter().find(is_own).filter(|own| own.host != point.host);
    let time = |of: fn(&Measured) -> Option<Times>, figure: fn(&Times) -> f64| {
        let Some(times) = of(&point.measured) else { return "none".to_owned() };
        let ratio = own.and_then(|own| of(&own.measured)).map(|own| figure(&times) / figure(&own));
        number(figure(&times)) + &ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2})"))
    };
    let Measured { load_percent, offered_per_s, served_per_s, .. } = point.measured;
    let mut cells =
        vec![point.host.name(policy), format!("{load_percent} %"), number(offered_per_s), number(served_per_s)];
    let figures: [fn(&Times) -> f64; 5] =
        [|it| it.p50_us, |it| it.p99_us, |it| it.p995_us, |it| it.p999_us, |it| it.longest_us];
    cells.extend(figures.map(|figure| time(|it| it.all, figure)));
    cells.extend([figures[1], figures[3]].map(|figure| time(|it| it.short, figure)));
    cells
}

#[cfg(test)]
impl Point {
    /// What a guest could have said of a load.
    pub(super) fn like(host: Host, load_percent: u32, longest_us: f64) -> Self {
        let times = |n, longest_us: f64| {
            let [p50_us, p99_us, p995_us, p999_us] = [0.125, 0.25, 0.5, 0.75].map(|part| part * longest_us);
            Some(Times { n, p50_us, p99_us, p995_us, p999_us, longest_us })
        };
        let measured = Measured {
            load_percent,
            offered_per_s: 1_000.0,
            served_per_s: 990.0,
            all: times(1_000, longest_us),
            short: times(995, longest_us / 2.0),
            unanswered: 0,
            wrong: 0,
            short_cpu_us: Some(20.0),
            long_cpu_us: None,
        };
        Self { host, measured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_divided_by_those_of_the_kernels_own_with_the_same_load() {
        let points = [
            Point::like(Host::Agent, 50, 800.0),
            Point::like(Host::Own, 95, 100.0),
            Point::like(Host::Own, 50, 1_600.0),
            Point::like(Host::Agent, 10, 800.0),
        ];
        let line = |at: usize| cells(&points[at], &points, "shinjuku");
        let first = ["agent, shinjuku", "50 %", "1,000", "990", "100 (0.50)", "200 (0.50)", "400 (0.50)", "600 (0.50)"];
        assert_eq!(line(0)[..8], first);
        assert_eq!(line(0)[8..], ["800 (0.50)", "100 (0.50)", "300 (0.50)"]);
        assert_eq!(line(2)[..6], ["the kernel's own", "50 %", "1,000", "990", "200", "400"]);
        assert_eq!(line(3)[8], "800", "the kernel's own was not measured with this load");
        assert_eq!(line(0).len(), HEADING.len());
    }

    #[test]
    fn workers_are_bound_under_the_kernels_own_scheduler_only() {
        let rocksdb = RocksDb { loads: vec![10, 95], workers: 100, ms: 1_000, stretch: 8, others: 7 };
        let [agent, own] = [Host::Agent, Host::Own].map(|host| rocksdb.told(host).join(" "));
        assert_eq!(
            agent,
            "--json --loads=10,95 --workers=100 --apart=2 --ms=1000 --get-us=32 --range-us=80000 --others=7"
        );
        assert_eq!(own, agent.replace("--workers=100", "--bound"));
    }

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let [with, without] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        std::fs::write(with.path().join(LIBRARY), "").unwrap();
        let [with, without] = [with.path(), without.path()];
        assert_eq!(library_directory(None, &[without, with]).unwrap(), with);
        assert_eq!(library_directory(Some(with.to_owned()), &[]).unwrap(), with);
        // What is named is meant.
        let error = library_directory(Some(without.to_owned()), &[with]).unwrap_err();
        assert!(error.to_string().contains("install librocksdb-dev"), "{error}");
    }
}
