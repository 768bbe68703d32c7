//! `ekiden reproduce`: what papers measured, measured again, side by side.

mod arbiter;
mod cos;
mod dispersive;
mod ekiben_tables;
mod locality;
mod missing_domains;
mod nginx;
mod requests;
mod turns;
mod wasted_cores;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

pub(crate) use self::{cos::Cos, ekiben_tables::EkibenTables, locality::Locality};

/// `ekiden reproduce`: what papers measured, measured again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden reproduce wasted-cores
      tables 1, 2, 3 and section 3.1 of papers/002
  ekiden reproduce wasted-cores missing-domains
      one of its bugs
  ekiden reproduce wasted-cores --json --check
  ekiden reproduce wasted-cores --report pages
      and a page of each run, as in figures 2, 3 and 5
  ekiden reproduce missing-domains --report pages
      figure 5 again, in a stock kernel
  ekiden reproduce dispersive
      figure 2 of papers/000
  ekiden reproduce arbiter
      figure 3 of papers/000
  ekiden reproduce locality
      table 6 of papers/000, in a stock kernel
  ekiden reproduce ekiben-tables
      tables 2, 3 and 4 of papers/000, in a stock kernel
  ekiden reproduce cos; ekiden reproduce cos rocksdb
      sections 4.2 to 4.4 of papers/004, in a stock kernel
  ekiden reproduce nginx --report nginx.html
      the histograms of papers/003, in a stock kernel
Look at one of the simulated runs yourself:
  ekiden sim nas-lu:threads=16:on=8-23 -p cfs --machine bulldozer64 \\
      --set group_construction=1 --invariants --every 50 --persists 20")]
pub struct Reproduce {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The four bugs of the kernel's scheduler, with and without each, simulated (papers/002, section 3)
    WastedCores(wasted_cores::WastedCores),
    /// One of them in a stock kernel: 16 threads on 8 nodes that do not balance (papers/002, figure 5)
    MissingDomains(missing_domains::MissingDomains),
    /// Short requests among a few very long ones, alone and beside a batch program, simulated (papers/000, figure 2)
    Dispersive(dispersive::Dispersive),
    /// A server that has as many CPUs as it needs, and one that has all of them, simulated (papers/000, figure 3)
    Arbiter(arbiter::Arbiter),
    /// Threads that wake each other up, with hints and without, in a stock kernel (papers/000, table 6)
    Locality(locality::Locality),
    /// A pipe and wake-ups under each policy, and lines of code, in a stock kernel (papers/000, tables 2 to 4)
    EkibenTables(ekiben_tables::EkibenTables),
    /// How long a decision takes, a worker beside limited programs, and requests to RocksDB, in a stock kernel (papers/004)
    Cos(cos::Cos),
    /// How long wrk waits for a CPU under one scheduler and another, in a stock kernel (papers/003)
    Nginx(nginx::Nginx),
}

impl Reproduce {
    /// Runs the command; the exit code is that of the program.
    pub fn run(self) -> Result<ExitCode> {
        match self.what {
            What::WastedCores(wasted_cores) => wasted_cores.run(),
            What::MissingDomains(missing_domains) => missing_domains.run(),
            What::Dispersive(dispersive) => dispersive.run(),
            What::Arbiter(arbiter) => arbiter.run(),
            What::Locality(locality) => locality.run(),
            What::EkibenTables(tables) => tables.run(),
            What::Cos(cos) => cos.run(),
            What::Nginx(nginx) => nginx.run(),
        }
    }
}
