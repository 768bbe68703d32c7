//! `ekiden trace`: records traces of the kernel, says what is in traces, cuts them, and writes them in other formats.

pub(crate) mod considered;
mod export;
mod filter;
mod notes;
mod record;
mod recording;
mod until_error;
mod whom;

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ekiden_trace::{Cut, Header, NoteNames, What};
use serde::Serialize;

use self::{export::Format, filter::Filter, recording::Recording};
pub(crate) use self::{filter::time_ns, whom::is_wanted};
use crate::{
    failure::{Exit, Failure},
    output::{Output, open_trace},
    own::Needs,
    progress::Progress,
};

#[derive(Args)]
#[command(after_help = "\
Those that read a trace take little memory, whatever its length. They also read
files of trace-cmd (trace.dat) and perf (perf.data), if sched_switch is in them.
`info`, `cat` and `export` (as .jsonl or .csv) also read recordings of a
policy's calls, which `ekiden record` makes.
Examples:
  ekiden sim churn -p wfq --trace out
      makes a trace; out.zst is a compressed one
  sudo ekiden trace record out -- make -j4
      makes one of the kernel, under whichever scheduler
  ekiden trace info out
      what it is of, how long, how many records of which kind
  ekiden trace cat out --pid 1000
      what happened to one task
  ekiden trace cut out -o piece --from 1ms --until 2.5ms
  ekiden trace cut trace.dat -o out
      makes a trace of a recording of trace-cmd
  ekiden trace export out out.pftrace
      for https://ui.perfetto.dev; also .jsonl, .csv, .parquet
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
    #[command(after_help = "\
Examples:
  ekiden trace cat out --pid 1000
  ekiden trace cat out --cpu 0-3 --from 12.5ms | head")]
    Cat {
        /// A trace
        trace: PathBuf,
        #[command(flatten)]
        filter: Filter,
    },
    /// Cut a piece out of it that is a trace by itself
    #[command(after_help = "\
Examples:
  ekiden trace cut out -o piece --from 12.5ms --until 3s
  ekiden trace cut out -o piece --cpu 0-7   the other CPUs are offline there
  ekiden trace cut out -o piece --task 'cc1*'
      the other tasks are one per CPU there, called `others`
Times begin anew in the piece; `ekiden trace info` says where it was. What
stands when it begins is told at its beginning: tasks with names, nice values,
affinities and groups, what waits, what runs, limits. So `ekiden check`, `view`
and `trace export` work on it. Only `ekiden check --lag` needs all tasks.")]
    Cut {
        /// A trace
        trace: PathBuf,
        /// The file to write
        #[arg(short, value_name = "OUT")]
        output: PathBuf,
        #[command(flatten)]
        filter: Filter,
        /// Only tasks of this name, from when on they have it; a `*` at its end stands for anything; may be given again
        #[arg(long, value_name = "NAME")]
        task: Vec<String>,
    },
    /// Write it in another format: Perfetto's, or as a table with a row for each record
    #[command(after_help = "\
Examples:
  ekiden trace export out out.pftrace   and open that at https://ui.perfetto.dev
  ekiden trace export out out.parquet   for DuckDB, pandas and the like
  ekiden trace export out - --format jsonl | jq 'select(.what == \"migrate\")'
Columns of a table: time_ns, cpu, what, pid, task (its name), value (what that
is depends on `what`), piece (numbers the words of sets of CPUs), note (what the
policy calls the value).")]
    Export {
        /// A trace
        trace: PathBuf,
        /// The file to write, or `-` for standard output
        to: PathBuf,
        /// The format, if the name of the file does not tell it by .pftrace, .jsonl, .csv or .parquet
        #[arg(long)]
        format: Option<Format>,
    },
    /// Put the CPUs at which a policy looked into a trace, as a replay of its calls tells them
    Considered(considered::ConsideredCommand),
    /// Put what a policy noted in its calls into a trace, from a recording of them
    Notes(notes::NotesCommand),
    /// Record what the kernel's scheduler does, whichever it is
    Record(record::RecordTrace),
}

#[derive(Serialize)]
struct Info {
    header: Header,
    records: u64,
    tasks: u32,
    from_ns: u64,
    until_ns: u64,
    kinds: BTreeMap<&'static str, u64>,
    /// Records that are missing, at least.
    lost: u64,
}

impl TraceCommand {
    /// The policies that have to be in this process.
    pub(crate) fn needs(&self) -> Needs {
        match &self.what {
            Tool::Considered(considered) => considered.needs(),
            Tool::Record(_)
            | Tool::Notes(_)
            | Tool::Info { .. }
            | Tool::Cat { .. }
            | Tool::Cut { .. }
            | Tool::Export { .. } => Needs::default(),
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let done = match self.what {
            Tool::Record(record) => return record.run(),
            Tool::Considered(considered) => considered.run(),
            Tool::Notes(notes) => notes.run(),
            Tool::Info { trace, json } => info(&trace, json),
            Tool::Cat { trace, filter } => cat(&trace, &filter),
            Tool::Cut { trace, output, filter, task } => cut(&trace, &output, filter, task),
            Tool::Export { trace, to, format } => export::run(&trace, &to, format),
        };
        match done {
            // The reader has closed the pipe, as `head` does.
            Err(error) if is_broken_pipe(&error) => {}
            result => result?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn info(path: &Path, json: bool) -> Result<()> {
    if let Some(recording) = Recording::open(path)? {
        return recording::info(path, recording, json);
    }
    let reader = open_trace(path)?;
    let busy = Progress::brief(format!("reading {}", path.display()));
    let header = reader.header().clone();
    let mut info =
        Info { header, records: 0, tasks: 0, from_ns: u64::MAX, until_ns: 0, kinds: BTreeMap::new(), lost: 0 };
    let mut kinds: BTreeMap<What, u64> = BTreeMap::new();
    // A bit for each PID.
    let mut tasks: BTreeMap<u32, u64> = BTreeMap::new();
    for record in reader {
        let record = record.with_context(|| path.display().to_string())?;
        info.records += 1;
        info.from_ns = info.from_ns.min(record.time_ns);
        info.until_ns = info.until_ns.max(record.time_ns);
        *kinds.entry(record.what).or_default() += 1;
        info.lost = info.lost.saturating_add(record.lost());
        if let Some(pid) = record.task() {
            *tasks.entry(pid / 64).or_default() |= 1 << (pid % 64);
        }
    }
    drop(busy);
    info.tasks = tasks.values().map(|word| word.count_ones()).sum();
    info.from_ns = info.from_ns.min(info.until_ns);
    info.kinds = kinds.iter().map(|(what, count)| (what.name(), *count)).collect();
    if json {
        println!("{}", serde_json::to_string_pretty(&info)?);
        return Ok(());
    }
    let header = &info.header;
    let policy = header.policy.as_deref().unwrap_or("the host's own scheduler");
    println!("{}", format!("{} under {policy} {}", header.workload, header.params).trim_end());
    println!("{} CPUs, {} tasks, {} records", header.nr_cpus(), info.tasks, info.records);
    println!("from {} us until {} us", info.from_ns / 1_000, info.until_ns / 1_000);
    if header.begins_ns > 0 {
        println!("cut out of a longer one, from its {} us on", header.begins_ns / 1_000);
    }
    for (what, count) in &info.kinds {
        println!("{count:>12} {what}");
    }
    if info.lost > 0 {
        println!("at least {} records were lost: the trace has holes, where it says `lost`", info.lost);
    }
    println!("next: ekiden check {}", path.display());
    Ok(())
}

fn cat(path: &Path, filter: &Filter) -> Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    if let Some(recording) = Recording::open(path)? {
        return recording::cat(path, recording, filter, output);
    }
    let mut names = NoteNames::default();
    for record in open_trace(path)? {
        let record = record.with_context(|| path.display().to_string())?;
        let note = names.record(&record);
        // The name of a note stands in its line.
        if record.what == What::NoteName || !filter.has(&record) {
            continue;
        }
        match note {
            Some(note) => writeln!(output, "{record} {note}")?,
            None => writeln!(output, "{}", record.to_string().trim_end())?,
        }
    }
    output.flush()?;
    Ok(())
}

fn cut(path: &Path, to: &Path, filter: Filter, names: Vec<String>) -> Result<()> {
    let pids = filter.pids();
    let cut = Cut {
        from_ns: filter.from.unwrap_or(0),
        until_ns: filter.until.unwrap_or(u64::MAX),
        cpus: filter.cpu,
        pids,
        names,
    };
    if cut.from_ns >= cut.until_ns {
        return Err(Failure::new(Exit::Usage, "--from has to be earlier than --until").into());
    }
    let trace = open_trace(path)?;
    let nr_cpus = trace.header().nr_cpus();
    if cut.cpus.as_ref().is_some_and(|cpus| !cpus.iter().any(|cpu| cpu < nr_cpus)) {
        let message = format!("the trace has no such CPUs: name some of 0-{}", nr_cpus - 1);
        return Err(Failure::new(Exit::Usage, message).into());
    }
    let output = Output::create(to)?;
    let busy = Progress::brief(format!("cutting {}", path.display()));
    cut.run(trace, BufWriter::with_capacity(1 << 16, output.clone())).with_context(|| path.display().to_string())?;
    output.finish()?;
    drop(busy);
    eprintln!("next: ekiden view {}", to.display());
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}
