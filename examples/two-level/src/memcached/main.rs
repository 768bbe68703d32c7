//! `ekiden-memcached`: a server that speaks memcached's protocol, on CPUs that it asks the policy `arbiter` for.

mod protocol;
mod serve;
mod store;

use std::{
    net::{IpAddr, TcpListener},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use ekiden_two_level::{Config, Runtime};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::serve::Server;

#[derive(Parser)]
#[command(
    version,
    about = "A server of memcached's text protocol, on as many CPUs as it needs",
    after_help = "\
A thread at user level serves each connection; activations run them, a thread
of the kernel's for each CPU. Under the policy `arbiter` the server asks for as
many CPUs as it needs and gives back those that are wanted elsewhere. Without
it, it says so and runs as any other program.
It knows get, gets, set, add, replace, cas, delete, incr, decr, touch, stats,
flush_all, version, verbosity and quit. No authentication and no encryption, as
in memcached's own text protocol: do not listen where strangers are.
Examples:
  ekiden-memcached
  ekiden run arbiter -- ekiden-memcached --cpus 2..7 --priority 1
  ekiden-memcached --port 11300 --memory 256 --cpus 1..2
  printf 'stats\\r\\nquit\\r\\n' | nc 127.0.0.1 11211
Exit status: 0 after Ctrl-C or SIGTERM, 1 if it cannot serve, 2 if the command
line is wrong."
)]
struct Args {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    listen: IpAddr,
    /// The port; 0 is any that is free
    #[arg(long, default_value_t = 11211)]
    port: u16,
    /// CPUs that it asks for, at least and at most
    #[arg(long, value_name = "MIN..MAX", default_value = "2..7", value_parser = cpus)]
    cpus: Config,
    /// How soon it is given CPUs: the higher, the sooner
    #[arg(long, default_value_t = 1)]
    priority: u32,
    /// The policy that gives them
    #[arg(long, value_name = "NAME", default_value = "arbiter")]
    policy: String,
    /// MiB for keys and values; what was used least recently makes room
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: u64,
    /// Most connections at a time
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    connections: u64,
}

/// Reads `2..7`.
fn cpus(text: &str) -> Result<Config> {
    let numbers = text.split_once("..").and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    match numbers {
        Some((min, max)) if 0 < min && min <= max && max <= 1024 => Ok(Config { min, max }),
        _ => Err(anyhow!("two numbers of CPUs, such as 2..7, the first from 1 on and the second up to 1024")),
    }
}

fn run(args: &Args) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
    let failed = || format!("cannot listen on {} port {}; another one by --port", args.listen, args.port);
    let listener = TcpListener::bind((args.listen, args.port)).with_context(failed)?;
    let address = listener.local_addr().with_context(failed)?;
    let runtime = Runtime::under(&args.policy, args.priority, args.cpus).context("cannot start activations")?;
    let server = Arc::new(Server::new((args.memory << 20) as usize, args.connections));
    println!("listening on {address}");
    let stop = signals.handle();
    // SAFETY: a server and a socket are `Send`.
    let accepting = unsafe {
        runtime.spawn(move || {
            let failed = server.accept(listener);
            stop.close();
            failed
        })
    };
    let accepting = accepting.context("cannot start a thread")?;
    // Until one comes, or there is nothing to wait for.
    let signal = signals.forever().next();
    drop(runtime);
    match (signal, accepting.join()) {
        (None, Ok(Err(error))) => Err(error).context("cannot accept connections"),
        _ => Ok(()),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ekiden-memcached: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn help_fits_a_terminal_and_has_examples() {
        let help = Args::command().term_width(80).render_long_help().to_string();
        assert!(help.contains("Examples:\n  ekiden-memcached\n"), "{help}");
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:?}");
    }

    #[test]
    fn cpus_are_two_numbers() {
        assert!(matches!(cpus("2..7"), Ok(Config { min: 2, max: 7 })));
        for wrong in ["", "2", "7..2", "0..2", "2..x", "1..1025", "-1..2"] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
    }
}
