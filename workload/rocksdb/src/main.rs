//! `ekiden-rocksdb`: requests to RocksDB that arrive at random times, and workers that answer them (papers/004, section 4.4).
#![forbid(unsafe_code)]

mod store;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use ekiden_workload::real::{
    exec,
    requests::{self, Measured, Requests, Times, Workers},
};

use crate::store::Store;

/// Keys of the database, and how many of them a range query reads.
const KEYS: u64 = 20_000;
const RANGE: u64 = 1_000;

/// The part of the time that counts for which requests arrive before it.
const WARM_UP_PART: u64 = 5;

#[derive(Parser)]
#[command(
    version,
    about = "Sends requests to RocksDB at random times, has workers answer them, and prints how long each took",
    after_help = "\
The database is in memory. Requests arrive at random times (Poisson), whether or
not those before them have been answered; workers sleep until there is one, and
answer them first come, first served. Most are GETs, a few are queries of 1,000
keys; after each, a worker spins until it has used the CPU time that is asked
for. Times are from when a request was due to arrive until it was answered.
Examples:
  ekiden-rocksdb --json                  as in the papers, on the CPUs there are
  ekiden-rocksdb --bound --loads 50      a worker for each CPU, which stays there
  ekiden run shinjuku -- ekiden-rocksdb --loads 10,95 --ms 5000
Exit status: 0 well, 1 an answer was wrong or threads cannot be started, 2 the
command line is wrong."
)]
struct Cli {
    /// Requests that arrive, in percent of what the workers' CPUs can answer; one load after another
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "10,50,80,95", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    loads: Vec<u32>,
    /// Workers, on any of their CPUs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,
    /// One worker on each CPU instead, which stays there
    #[arg(long, conflicts_with = "workers")]
    bound: bool,
    /// CPUs that are not the workers'; requests are sent from the first
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    apart: u32,
    /// For how long requests count; they arrive a fifth as long before
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    ms: u64,
    /// CPU time of a GET
    #[arg(long, value_name = "US", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    get_us: u64,
    /// CPU time of a range query
    #[arg(long, value_name = "US", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    range_us: u64,
    /// Range queries in a thousand requests
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    range_permille: u32,
    /// Threads besides that use all the CPU time that they can have, on any CPU
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    others: u32,
    /// What is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Put all threads into class SCHED_EXT
    #[arg(long)]
    ext: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ekiden-rocksdb: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let store = Store::new(KEYS)?;
    // RocksDB has its threads by now, which do nothing more.
    if cli.ext {
        exec::enter_ext_class()?;
    }
    let answer = |request: &requests::Request| {
        if request.is_long { store.range(request.number, RANGE) } else { store.get(request.number) }
    };
    let measured: Vec<Measured> =
        cli.loads.iter().map(|load| requests::run(&cli.requests(*load), answer)).collect::<Result<_, _>>()?;
    if cli.json {
        println!("{}", serde_json::json!({ "scheduler": exec::scheduler(), "measured": measured }));
    } else {
        measured.iter().for_each(|measured| print!("{}", describe(measured)));
    }
    match measured.iter().map(|measured| measured.wrong).sum::<usize>() {
        0 => Ok(()),
        wrong => bail!("{wrong} answers of RocksDB are wrong"),
    }
}

impl Cli {
    fn requests(&self, load_percent: u32) -> Requests {
        let lasts_ns = self.ms * 1_000_000;
        Requests {
            load_percent,
            lasts_ns,
            warm_up_ns: lasts_ns / WARM_UP_PART,
            short_ns: self.get_us * 1_000,
            long_ns: self.range_us * 1_000,
            long_permille: self.range_permille,
            workers: if self.bound { Workers::Bound } else { Workers::Anywhere(self.workers) },
            apart: self.apart,
            others: self.others,
            seed: self.seed,
        }
    }
}

fn describe(measured: &Measured) -> String {
    let Measured { load_percent, offered_per_s, served_per_s, unanswered, .. } = measured;
    let mut text = format!(
        "{load_percent} %: {offered_per_s:.0} a second arrive, {served_per_s:.0} are answered, {unanswered} not\n"
    );
    for (what, times) in [("all", &measured.all), ("GET", &measured.short)] {
        let Some(Times { n, p50_us, p99_us, p995_us, p999_us, longest_us }) = times else { continue };
        text += &format!(
            "  {what}, {n}, us: 50 % {p50_us:.1}, 99 % {p99_us:.1}, 99.5 % {p995_us:.1}, 99.9 % {p999_us:.1}, \
             longest {longest_us:.1}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cli(options: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["ekiden-rocksdb"], options].concat())
    }

    #[test]
    fn requests_are_those_of_the_papers_by_default() {
        let requests = cli(&[]).unwrap().requests(50);
        assert_eq!((requests.short_ns, requests.long_ns, requests.long_permille), (4_000, 10_000_000, 5));
        assert_eq!((requests.workers, requests.warm_up_ns), (Workers::Anywhere(100), 200_000_000));
        assert_eq!(cli(&["--bound"]).unwrap().requests(50).workers, Workers::Bound);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let refused = [&["--loads=0"][..], &["--bound", "--workers=3"], &["--range-permille=1001"], &["--ms=no"]];
        assert!(refused.iter().all(|options| cli(options).is_err()));
    }
}
