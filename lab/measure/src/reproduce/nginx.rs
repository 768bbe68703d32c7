//! `ekiden reproduce nginx`: the histograms of papers/003, how long the threads of wrk wait for a CPU while they load nginx, under
//! one scheduler after another, in a virtual machine of a stock kernel.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_vm::{GuestCommand, Status, Stream, Vm};
use serde::Serialize;

use crate::{
    bench::{
        candidates::PolicyArgs,
        guest::{Clock, InVm},
    },
    failure::{Exit, Failure},
    machine::{follow_with, guest_command},
    output,
    progress::Progress,
    waits::{self, Counted, OWN},
};

const CPUS: u32 = 4;
const MEMORY_MIB: u32 = 1_024;

/// Where programs are that only root has in its `PATH`.
const SBIN: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Where the loader looks for the libraries of programs that are not installed.
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// A short answer from memory, so that there is nothing to wait for but CPUs.
const CONFIG: &str = "user root; worker_processes 4; pid /tmp/nginx.pid; error_log /tmp/nginx.log;
events { worker_connections 512; }
http { access_log off; server { listen 8080; location / { return 200 'hello\\n'; } } }
";

const START: &str =
    "mkdir -p /var/lib/nginx /var/log/nginx && ifconfig lo 127.0.0.1 up && nginx -e /tmp/nginx.log -c /host/nginx.conf";

#[derive(Args)]
#[command(after_help = "\
It boots a stock kernel on 4 CPUs, where nginx has 4 workers and wrk has 4
threads and 64 connections, each of them for one request, and counts as `ekiden
runqlat -c wrk --compare` does. The guest's clock counts instructions: a second
of it takes a minute or more. Before QEMU 8.1 a busy CPU may keep others from
running, which changes the histograms, and the longest waits are the emulator's.
nginx and wrk of this machine are used; scripts/nginx-wrk fetches them where
there are none, without installing them, and then does the same.
Examples:
  ekiden reproduce nginx --report nginx.html
  ekiden reproduce nginx --compare default,fifo,eevdf --seconds 10 --json
See also: ekiden runqlat, for the nginx that you have")]
pub(super) struct Nginx {
    /// Under each of these policies, one after another; `default` is the kernel's own scheduler
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "default,wfq")]
    compare: Vec<String>,
    /// For how long under each, in seconds of the guest
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// The guest's kernel: its release, or the beginning of one, as in 7.2.13; by default the newest that works
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    #[command(flatten)]
    source: PolicyArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a page with the histograms side by side
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    cpus: u32,
    seconds: u32,
    /// What wrk says, under each.
    requests_per_second: Vec<f64>,
    waits: Vec<Counted>,
}

impl Nginx {
    pub(super) fn run(self) -> Result<ExitCode> {
        let programs = ["nginx", "wrk"].into_iter().map(find).collect::<Result<_>>()?;
        let machine = InVm::of(CPUS, 1, MEMORY_MIB, self.kernel.clone(), programs);
        let policies: Vec<String> = self.compare.iter().filter(|name| *name != OWN).cloned().collect();
        let report = machine.with_guest(&self.source, &policies, Clock::Exact, |vm, share, _, progress| {
            self.measure(vm, share, progress)
        })?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", describe(&report));
        }
        if let Some(path) = &self.report {
            eprintln!("next: open {} in a browser", path.display());
        }
        let stayed = report.waits.iter().all(|counted| counted.stayed);
        Ok(if stayed { ExitCode::SUCCESS } else { Exit::TakenOut.into() })
    }

    fn measure(&self, vm: &Vm, share: &Path, progress: &mut Progress) -> Result<Report> {
        progress.step("starting nginx");
        let config = share.join("nginx.conf");
        fs::write(&config, CONFIG).with_context(|| format!("cannot write {}", config.display()))?;
        vm.run_ok(&with_libraries(GuestCommand::shell(START).timeout(Duration::from_secs(120))))?;

        progress.step(format!("wrk against nginx for {} s of the guest's time under each", self.seconds));
        let page = share.join("page.html");
        let compare = format!("--compare={}", self.compare.join(","));
        let mut argv = vec!["ekiden", "runqlat", "-c", "wrk", "--json", &compare];
        argv.extend(self.report.as_ref().map(|_| "--report=/host/page.html"));
        let time = format!("-d{}s", self.seconds);
        argv.extend(["--", "wrk", "-t4", "-c64", &time, "-H", "Connection: close", "http://127.0.0.1:8080/"]);
        let (mut printed, mut said) = (String::new(), String::new());
        let status = follow_with(vm, &with_libraries(guest_command(argv)), &mut |stream, bytes| match stream {
            Stream::Stdout => printed.push_str(&String::from_utf8_lossy(bytes)),
            Stream::Stderr => said.push_str(&String::from_utf8_lossy(bytes)),
        })?;
        // What wrk prints comes first.
        let place = printed.find("\n[\n").filter(|_| matches!(status, Status::Code(0 | 101)));
        let Some(place) = place else {
            let tail = vm.console().tail(20);
            let message = format!("it failed in the guest ({status}): {printed}{said}\nits console:\n{tail}");
            return Err(Failure::new(Exit::Other, message).into());
        };
        let (wrk, json) = printed.split_at(place);
        if let Some(path) = &self.report {
            output::write(path, &fs::read(&page).context("the guest wrote no page")?)?;
        }
        Ok(Report {
            kernel: vm.release().to_owned(),
            cpus: CPUS,
            seconds: self.seconds,
            requests_per_second: requests(wrk),
            waits: serde_json::from_str(json).context("the guest printed something strange")?,
        })
    }
}

/// How many requests a second wrk says that it made, each time that it ran.
fn requests(wrk: &str) -> Vec<f64> {
    wrk.lines().filter_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse().ok()).collect()
}

/// A program of this machine.
fn find(name: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(SBIN.map(PathBuf::from));
    places.map(|place| place.join(name)).find(|file| file.is_file()).ok_or_else(|| {
        let message = format!(
            "there is no {name} on this machine; scripts/nginx-wrk fetches it without installing it, and then does the same"
        );
        Failure::new(Exit::Missing, message).into()
    })
}

/// Programs that are not installed find their libraries where they are here.
fn with_libraries(command: GuestCommand) -> GuestCommand {
    match env::var(LIBRARIES) {
        Ok(places) => command.env(LIBRARIES, places),
        Err(_) => command,
    }
}

fn describe(report: &Report) -> String {
    let Report { kernel, cpus, seconds, .. } = report;
    let mut text = format!("Linux {kernel} on {cpus} CPUs: wrk against nginx for {seconds} s\n\n");
    for (counted, per_second) in report.waits.iter().zip(&report.requests_per_second) {
        text += &format!("{:<28} {per_second:>9.0} requests a second\n", counted.scheduler);
    }
    text + "\n" + &waits::text(&report.waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_says_is_read_each_time() {
        let said = "Running 1s test @ http://127.0.0.1:8080/\n  4 threads and 64 connections\nRequests/sec:   1219.51\n\
                    Transfer/sec:    198.9KB\nRunning 1s test\nRequests/sec:      7.00\n";
        assert_eq!(requests(said), [1219.51, 7.0]);
        assert!(requests("unable to connect").is_empty());
    }
}
