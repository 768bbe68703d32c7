//! `ekiden run`: what it is told of a policy, here and in a guest.

use std::path::PathBuf;

use clap::Args;

/// How a policy is to run: options that `ekiden run` and `ekiden vm run` have in common.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// The policy: one that comes with Ekiden (fifo, wfq), or of the project in the current directory
    pub policy: String,
    /// A parameter of the policy
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Schedule only the command (or what `ekiden exec` starts), not the whole machine
    #[arg(long)]
    pub attached: bool,
    /// Room for this many tasks, 192 bytes each; by default as many as kernel.threads-max and kernel.pid_max allow, up to a million.
    /// If there are more, those share a part of each CPU, and no policy has them, until there is room
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=4_194_304))]
    pub max_tasks: Option<u32>,
    /// Memory for the policy itself; by default 256 bytes per task that there is room for, and 32 MiB at least
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=16_384))]
    pub arena_mib: Option<u64>,
    /// If the policy is taken out, let the command continue under the kernel's own scheduler
    #[arg(long)]
    pub keep_going: bool,
}

/// `ekiden run` in a guest. Paths are those of the guest.
#[derive(Clone, Debug, Default)]
pub struct GuestRun {
    /// The program `ekiden`, by its name or path.
    pub ekiden: String,
    /// How the policy is to run.
    pub options: RunOptions,
    /// Memory for the newest calls of each CPU, if it is not the usual.
    pub flight_kib: Option<u64>,
    /// Where its last calls are saved, if it is not the usual place.
    pub flights: Option<PathBuf>,
    /// The file for all calls, if they are to be recorded.
    pub record: Option<PathBuf>,
    /// The command, if there is one.
    pub command: Vec<String>,
}

impl GuestRun {
    /// A command under a policy.
    pub fn new<S: Into<String>>(ekiden: &str, policy: &str, command: impl IntoIterator<Item = S>) -> Self {
        Self {
            ekiden: ekiden.to_owned(),
            options: RunOptions { policy: policy.to_owned(), ..RunOptions::default() },
            command: command.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// This run as a command line, which `ekiden run` reads.
    pub fn argv(&self) -> Vec<String> {
        let Self { ekiden, options, flight_kib, flights, record, command } = self;
        let RunOptions { policy, set, attached, max_tasks, arena_mib, keep_going } = options;
        let mut argv = vec![ekiden.clone(), "run".to_owned(), policy.clone()];
        argv.extend(set.iter().map(|set| format!("--set={set}")));
        argv.extend(attached.then(|| "--attached".to_owned()));
        argv.extend(keep_going.then(|| "--keep-going".to_owned()));
        argv.extend(max_tasks.map(|tasks| format!("--max-tasks={tasks}")));
        argv.extend(arena_mib.map(|mib| format!("--arena-mib={mib}")));
        argv.extend(flight_kib.map(|kib| format!("--flight-kib={kib}")));
        argv.extend(flights.iter().map(|directory| format!("--flights={}", directory.display())));
        argv.extend(record.iter().map(|file| format!("--record={}", file.display())));
        if !command.is_empty() {
            argv.push("--".to_owned());
            argv.extend(command.iter().cloned());
        }
        argv
    }
}
