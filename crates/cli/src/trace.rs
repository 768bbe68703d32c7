//! `ekiden trace`: what is in a trace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ekiden_check::{Checker, Limits};
use ekiden_page::{Builder, perfetto};
use ekiden_trace::{Header, Reader, What};
use serde::Serialize;

#[derive(Args)]
#[command(after_help = "\
The first two read files of any length with little memory.
Examples:
  ekiden sim churn -p wfq --trace out     makes a trace
  ekiden trace info out                   what it is of, how long, how many records of which kind
  ekiden trace info out --json
  ekiden trace cat out --pid 1000         what happened to one task
  ekiden trace cat out --cpu 3 | head     the first things that happened on a CPU
  ekiden trace export out out.pftrace     for https://ui.perfetto.dev
See also: ekiden view --help, ekiden check --help")]
pub(crate) struct TraceCommand {
    #[command(subcommand)]
    what: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Say what a trace is of
    #[command(after_help = "Example: ekiden trace info out --json")]
    Info {
        /// A trace, as `ekiden sim --trace` writes it
        trace: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print its records, a line each: time in microseconds, CPU, what, task
    #[command(after_help = "Example: ekiden trace cat out --pid 1000")]
    Cat {
        /// A trace
        trace: PathBuf,
        /// Only those of this CPU
        #[arg(long, value_name = "N")]
        cpu: Option<u32>,
        /// Only those of this task
        #[arg(long, value_name = "N")]
        pid: Option<u32>,
    },
    /// Write it in Perfetto's format
    #[command(after_help = "Example: ekiden trace export out out.pftrace, and open that at https://ui.perfetto.dev")]
    Export {
        /// A trace
        trace: PathBuf,
        /// The file to write
        to: PathBuf,
    },
}

#[derive(Serialize)]
struct Info {
    header: Header,
    records: u64,
    tasks: usize,
    from_ns: u64,
    until_ns: u64,
    kinds: BTreeMap<String, u64>,
}

impl TraceCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.what {
            Tool::Info { trace, json } => info(&trace, json)?,
            Tool::Export { trace, to } => export(&trace, &to)?,
            Tool::Cat { trace, cpu, pid } => match cat(&trace, cpu, pid) {
                // Whoever read it has seen enough.
                Err(error) if is_broken_pipe(&error) => {}
                result => result?,
            },
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn open(path: &Path) -> Result<Reader<BufReader<File>>> {
    let file = File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
    Reader::new(BufReader::new(file)).with_context(|| path.display().to_string())
}

fn info(path: &Path, json: bool) -> Result<()> {
    let reader = open(path)?;
    let header = reader.header().clone();
    let mut info = Info { header, records: 0, tasks: 0, from_ns: u64::MAX, until_ns: 0, kinds: BTreeMap::new() };
    let mut kinds: BTreeMap<What, u64> = BTreeMap::new();
    let mut tasks = BTreeSet::new();
    for record in reader {
        let record = record.with_context(|| path.display().to_string())?;
        info.records += 1;
        info.from_ns = info.from_ns.min(record.time_ns);
        info.until_ns = info.until_ns.max(record.time_ns);
        *kinds.entry(record.what).or_default() += 1;
        // That of a limit is a group.
        if record.pid != 0 && record.what != What::Limit {
            tasks.insert(record.pid);
        }
    }
    info.tasks = tasks.len();
    info.from_ns = info.from_ns.min(info.until_ns);
    info.kinds = kinds.iter().map(|(what, count)| (format!("{what:?}").to_lowercase(), *count)).collect();
    if json {
        println!("{}", serde_json::to_string_pretty(&info)?);
        return Ok(());
    }
    let header = &info.header;
    let policy = header.policy.as_deref().unwrap_or("the host's own scheduler");
    println!("{} under {policy} {}", header.workload, header.params);
    println!("{} CPUs, {} tasks, {} records", header.nr_cpus(), info.tasks, info.records);
    println!("from {} us until {} us", info.from_ns / 1_000, info.until_ns / 1_000);
    for (what, count) in &info.kinds {
        println!("{count:>12} {what}");
    }
    println!("next: ekiden check {}", path.display());
    Ok(())
}

fn cat(path: &Path, cpu: Option<u32>, pid: Option<u32>) -> Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    for record in open(path)? {
        let record = record.with_context(|| path.display().to_string())?;
        // In these the field of the CPU numbers pieces.
        let has_cpu = !matches!(record.what, What::Name | What::Allowed | What::Considered | What::Limit);
        let wanted = cpu.is_none_or(|cpu| has_cpu && cpu == record.cpu)
            && pid.is_none_or(|pid| pid == record.pid && record.what != What::Limit);
        if wanted {
            writeln!(output, "{record}")?;
        }
    }
    output.flush()?;
    Ok(())
}

fn export(path: &Path, to: &Path) -> Result<()> {
    let reader = open(path)?;
    let header = reader.header().clone();
    let (mut builder, mut checker) = (Builder::new(&header), Checker::new(&header, &Limits::default()));
    for record in reader {
        let record = record.with_context(|| path.display().to_string())?;
        builder.record(&record);
        checker.record(&record);
    }
    let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
    let mut output = BufWriter::new(file);
    // It has been read once without an error.
    let records = open(path)?.map_while(Result::ok);
    perfetto::export(records, &builder.finish(), &checker.finish(), &mut output)
        .and_then(|()| output.flush())
        .with_context(|| format!("cannot write {}", to.display()))?;
    println!("next: open {} at https://ui.perfetto.dev", to.display());
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}
