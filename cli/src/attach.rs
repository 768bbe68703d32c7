//! `ekiden attach`, `ekiden detach`: which of the policies that run has a thread, a program or a control group.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use ekiden_loader::{ChooseOptions, Followed, Inherit, Status, Who, choose};

use crate::{progress::Progress, signals};

/// How long a new thread waits for the policy at most, apart from the time that a look takes.
const FOLLOWED: Duration = Duration::from_millis(100);

#[derive(Args)]
// What clap would say is longer than a terminal is wide.
#[command(override_usage = "ekiden attach [OPTIONS] <POLICY> --pid|--tid|--cgroup|--comm <WHICH>")]
#[command(after_help = "\
Examples:
  ekiden run wfq &  ekiden run fifo --beside --open &
      two policies; wfq has everything
  ekiden attach fifo --pid 4711
      a program with all its threads
  ekiden attach fifo --comm nginx
      every program of that name
  ekiden attach fifo --cgroup /sys/fs/cgroup/batch --follow
      and every task that joins it later
  ekiden attach fifo --tid 4712 --no-inherit
      one thread, and not the ones that it starts
  ekiden attach eevdf --pid 4711 --set slice_us=500

It takes effect when a thread next waits for a CPU. For one's own threads that
needs no privilege, for others CAP_SYS_NICE. See also: ekiden exec -p, ekiden
status")]
pub(crate) struct Attach {
    /// The policy, by its name or the number that `ekiden status` shows
    policy: String,
    #[command(flatten)]
    who: Chosen,
    /// Stay, and give it to those as well who come into the group, or start a program of that name, later; until Ctrl-C
    #[arg(long, conflicts_with_all = ["pid", "tid"])]
    follow: bool,
    /// Children that are started from now on get the default policy
    #[arg(long)]
    no_inherit: bool,
    /// Something that the policy has for a task; may be given several times
    #[arg(long, value_name = "NAME=NUMBER")]
    set: Vec<String>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  ekiden detach --pid 4711
  ekiden detach --comm nginx")]
pub(crate) struct Detach {
    #[command(flatten)]
    who: Chosen,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Chosen {
    /// A process with all its threads
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// One thread
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    tid: Option<i32>,
    /// All tasks of a control group and those below it, by its directory
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Every process of this name
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
}

impl Chosen {
    fn who(self) -> Who {
        let Self { pid, tid, cgroup, comm } = self;
        // Clap has seen to it that there is exactly one.
        None.or(pid.map(Who::Process))
            .or(tid.map(Who::Thread))
            .or(cgroup.map(Who::Group))
            .or(comm.map(Who::Named))
            .unwrap_or(Who::Thread(0))
    }
}

impl Attach {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let status = Status::read()?.unwrap_or_default();
        let policy = status.find(Some(&self.policy))?;
        let inherit = if self.no_inherit { Inherit::No } else { Inherit::Yes };
        let params = self.set.join(" ");
        let options = ChooseOptions { inherit, params: &params };
        if self.follow {
            return follow(self.who.who(), policy.slot, &policy.policy, options);
        }
        let threads = of_them(choose(&self.who.who(), Some(policy.slot), options)?);
        println!("{} has {threads} more; `ekiden status` shows how it fares", policy.policy);
        Ok(ExitCode::SUCCESS)
    }
}

impl Detach {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let threads = of_them(choose(&self.who.who(), None, Inherit::No)?);
        println!("now with the default policy: {threads}");
        Ok(ExitCode::SUCCESS)
    }
}

/// Gives the policy to all threads in `who`, and to new ones, until a signal ends it; they keep it then.
fn follow(who: Who, slot: u32, policy: &str, options: ChooseOptions<'_>) -> Result<ExitCode> {
    let (sender, signal) = channel();
    let _handling = signals::handle(move |_| sender.send(()).unwrap_or_default()).context("cannot handle signals")?;
    let mut followed = Followed::new(who, Some(slot))?;
    let mut count = 0;
    let watching = Progress::open(format!("giving {policy} to those who come; Ctrl-C ends it"));
    loop {
        match followed.look(options)? {
            0 => {}
            new => {
                count += new;
                watching.aside(|| println!("{policy} has {} more", of_them(new)));
            }
        }
        if signal.recv_timeout(FOLLOWED) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    drop(watching);
    println!("{policy} was given to {}, who keep it; `ekiden detach` takes it back", of_them(count));
    Ok(ExitCode::SUCCESS)
}

fn of_them(threads: usize) -> String {
    if threads == 1 { "1 thread".into() } else { format!("{threads} threads") }
}
