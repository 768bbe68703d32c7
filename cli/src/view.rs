//! `ekiden view`: a trace in the browser; and the report, the same page in one file.

use std::{
    io::Read,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    sync::Arc,
    thread,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_check::{Checker, Verdict};
use ekiden_page::{Builder, Model, Notes, REPORT_BYTES_MAX, Server, report};
use ekiden_trace::{Header, Reader};

use crate::{
    check::Bounds,
    output::{self, open_trace},
    progress::Progress,
    report::machine_name,
    signals,
};

#[derive(Args)]
#[command(after_help = "\
It shows run queues, loads, tasks and considered CPUs over time, every change of
them, and what the checks find. It serves this machine only, until Ctrl-C.
Examples:
  ekiden sim messaging -p wfq --trace out; ekiden view out
  ekiden view out --no-open --port 8000   and then open http://127.0.0.1:8000/
  ekiden view out --report out.html       the page as one file that stands alone
See also: ekiden sim --report, ekiden trace export")]
pub(crate) struct View {
    /// A trace, as `ekiden sim --trace` writes it
    trace: PathBuf,
    /// The port to serve at; 0 takes any that is free
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    /// Start no browser
    #[arg(long)]
    no_open: bool,
    /// Write the page to this file instead of serving it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "no_open"])]
    report: Option<PathBuf>,
    /// Most kilobytes of that page: if the trace takes more, it has the whole only coarsely, and says so
    #[arg(long, value_name = "KB", requires = "report", default_value_t = (REPORT_BYTES_MAX / 1_000) as u32)]
    report_kb: u32,
    #[command(flatten, next_help_heading = "Bounds")]
    bounds: Bounds,
}

impl View {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let reader = open_trace(&self.trace)?;
        if let Some(path) = &self.report {
            let busy = Progress::brief(format!("making the page of {}", self.trace.display()));
            let (header, model, notes) = self.read(reader)?;
            let verdict = self.check().join().expect("checks do not panic")?;
            let text = report(&header, &model, &verdict, &notes, self.report_kb as usize * 1_000)?;
            output::write(path, text.as_bytes())?;
            drop(busy);
            println!("next: open {} in a browser", path.display());
            return Ok(ExitCode::SUCCESS);
        }
        // The browser has the page on its screen while the trace is read.
        let server = Server::new(self.port)?;
        let serving = Arc::clone(&server);
        let running = thread::spawn(move || serving.run());
        println!("{}", server.url());
        eprintln!("Ctrl-C ends it");
        if !self.no_open {
            start_browser(&server.url());
        }
        let stopped = Arc::clone(&server);
        let busy = Progress::brief(format!("reading {}", self.trace.display()));
        let (header, model, notes) = self.read(reader)?;
        drop(busy);
        server.show(header, model, notes);
        let _handling = signals::handle(move |_| stopped.stop()).context("cannot handle signals")?;
        let (checks, told) = (self.check(), server);
        thread::spawn(move || match checks.join().expect("checks do not panic") {
            Ok(verdict) => told.found(verdict),
            Err(error) => eprintln!("ekiden: {error:#}"),
        });
        running.join().expect("the server does not panic");
        Ok(ExitCode::SUCCESS)
    }

    fn read(&self, reader: Reader<impl Read>) -> Result<(Header, Model, Notes)> {
        let header = reader.header().clone();
        let mut builder = Builder::new(&header);
        for record in reader {
            builder.record(&record.with_context(|| self.trace.display().to_string())?);
        }
        let notes = Notes { machine: machine_name(&header), ..Notes::default() };
        Ok((header, builder.finish(), notes))
    }

    /// The checks take longer than the rest, so that they read the trace on their own, while the page is there already.
    fn check(&self) -> thread::JoinHandle<Result<Verdict>> {
        let (path, limits) = (self.trace.clone(), self.bounds.limits());
        thread::spawn(move || {
            let reader = open_trace(&path)?;
            let mut checker = Checker::new(reader.header(), &limits);
            for record in reader {
                checker.record(&record.with_context(|| path.display().to_string())?);
            }
            Ok(checker.verdict())
        })
    }
}

/// Without a desktop there is none, and the address has been printed.
fn start_browser(url: &str) {
    if std::env::var_os("DISPLAY").is_some() || std::env::var_os("WAYLAND_DISPLAY").is_some() {
        let started = Command::new("xdg-open").arg(url).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        if let Err(error) = started {
            eprintln!("no browser was started ({error}); open the address yourself");
        }
    }
}
