//! `ekiden-memcached-load`: clients of a server of memcached's protocol, which check every answer.

use std::{
    fmt::Write as _,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::Serialize;

/// How often the server is asked how many CPUs it has.
const LOOK: Duration = Duration::from_millis(50);

/// Different requests of a client, which it makes in turn.
const REQUESTS: usize = 32;

#[derive(Parser)]
#[command(
    version,
    about = "Clients of a server of memcached's protocol, which check every answer",
    after_help = "\
Each connection has a thread, which makes its next request when it has the last
one's answer. CPUs are what `stats` of ekiden-memcached says.
Examples:
  ekiden-memcached-load
  ekiden-memcached-load --connections 1 --gap-us 1000 --seconds 5 --json
  ekiden-memcached-load --connections 16 --gets 50
Exit status: 0 if all answers were right, 1 if not, 2 if the command line is
wrong."
)]
struct Args {
    /// Where the server is
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:11211")]
    server: SocketAddr,
    /// Connections
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// How long they make requests
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: u64,
    /// How many keys there are
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// Keys of each request
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=500))]
    gets: u32,
    /// Bytes of each value
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    bytes: u32,
    /// Microseconds between an answer and the next request
    #[arg(long, value_name = "US", default_value_t = 0)]
    gap_us: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    requests: u64,
    wrong: u64,
    seconds: f64,
    p50_us: f64,
    p99_us: f64,
    /// The server has CPUs of an arbiter.
    arbiter: bool,
    /// CPUs that it had in the second half of the time: fewest, on average, most.
    cpus_least: u64,
    cpus_mean: f64,
    cpus_most: u64,
}

/// A request, and what is to be answered.
struct Exchange {
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// What belongs to a key: its number again and again.
fn value(key: u32, bytes: u32) -> String {
    format!("{key:010}").chars().cycle().take(bytes as usize).collect()
}

impl Args {
    /// All of 3 % and more set a value, the others get some. The values are always the same, so each answer is known.
    fn exchanges(&self, connection: u32) -> Vec<Exchange> {
        let first = |number: usize| (connection.wrapping_mul(7919) + number as u32 * 104_729) % self.keys;
        (0..REQUESTS)
            .map(|number| {
                let first = first(number);
                if number == 0 {
                    return self.set(first);
                }
                let keys = (0..self.gets).map(|more| (first + more) % self.keys);
                let (mut request, mut answer) = ("get".to_owned(), String::new());
                for key in keys {
                    let value = value(key, self.bytes);
                    write!(request, " key{key}").expect("a string has room");
                    write!(answer, "VALUE key{key} {key} {}\r\n{value}\r\n", self.bytes).expect("a string has room");
                }
                Exchange { request: (request + "\r\n").into(), answer: (answer + "END\r\n").into() }
            })
            .collect()
    }

    fn set(&self, key: u32) -> Exchange {
        let request = format!("set key{key} {key} 0 {}\r\n{}\r\n", self.bytes, value(key, self.bytes));
        Exchange { request: request.into(), answer: b"STORED\r\n".to_vec() }
    }

    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.server).with_context(|| format!("no server at {}", self.server))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn run(&self) -> Result<Report> {
        let mut stream = self.connect()?;
        let wrong = AtomicU64::new(0);
        let mut room = Vec::new();
        for key in 0..self.keys {
            let is_right = exchange(&mut stream, &self.set(key), &mut room).context("a value cannot be set")?;
            wrong.fetch_add((!is_right).into(), Relaxed);
        }
        let lasts = Duration::from_secs(self.seconds);
        let begins = Barrier::new(self.connections as usize + 1);
        let (times, looks) = thread::scope(|scope| {
            let client = |connection| {
                let (wrong, begins) = (&wrong, &begins);
                scope.spawn(move || {
                    // It takes a while, in which there is no load yet.
                    let (stream, exchanges) = (self.connect(), self.exchanges(connection));
                    begins.wait();
                    self.talk(stream?, &exchanges, lasts, wrong)
                })
            };
            let clients: Vec<_> = (0..self.connections).map(client).collect();
            begins.wait();
            let looks = self.look(stream, lasts);
            let times = clients.into_iter().map(|client| client.join().expect("a client does not panic"));
            Ok::<_, anyhow::Error>((times.collect::<Result<Vec<_>>>()?.concat(), looks?))
        })?;
        self.report(times, &looks, wrong.into_inner())
    }

    /// Makes requests for so long. Returns how long each took, in nanoseconds.
    fn talk(
        &self,
        mut stream: TcpStream,
        exchanges: &[Exchange],
        lasts: Duration,
        wrong: &AtomicU64,
    ) -> Result<Vec<u64>> {
        let (begin, mut times_ns, mut room) = (Instant::now(), Vec::new(), Vec::new());
        for next in exchanges.iter().cycle() {
            if begin.elapsed() >= lasts {
                break;
            }
            let asked = Instant::now();
            let is_right = exchange(&mut stream, next, &mut room).context("the server has closed a connection")?;
            times_ns.push(asked.elapsed().as_nanos() as u64);
            wrong.fetch_add((!is_right).into(), Relaxed);
            if self.gap_us > 0 {
                thread::sleep(Duration::from_micros(self.gap_us));
            }
        }
        Ok(times_ns)
    }

    /// Looks again and again how many CPUs the server has. Returns that of the second half of the time, and whether there is an arbiter.
    fn look(&self, stream: TcpStream, lasts: Duration) -> Result<(Vec<u64>, bool)> {
        let mut stream = BufReader::new(stream);
        let (begin, mut cpus, mut is_arbitrated) = (Instant::now(), Vec::new(), false);
        while begin.elapsed() < lasts {
            stream.get_mut().write_all(b"stats\r\n")?;
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line)? == 0 {
                    bail!("the server has closed a connection");
                }
                match line.split_whitespace().collect::<Vec<_>>()[..] {
                    ["STAT", "cpus", value] if begin.elapsed() >= lasts / 2 => cpus.push(value.parse()?),
                    ["STAT", "arbiter", value] => is_arbitrated = value == "1",
                    ["STAT", ..] => {}
                    _ => break,
                }
            }
            thread::sleep(LOOK);
        }
        Ok((cpus, is_arbitrated))
    }

    fn report(&self, mut times_ns: Vec<u64>, (cpus, is_arbitrated): &(Vec<u64>, bool), wrong: u64) -> Result<Report> {
        if times_ns.is_empty() {
            bail!("no request was answered in {} s", self.seconds);
        }
        times_ns.sort_unstable();
        let at = |part: f64| times_ns[((times_ns.len() as f64 * part) as usize).min(times_ns.len() - 1)] as f64 / 1e3;
        Ok(Report {
            requests: times_ns.len() as u64,
            wrong,
            seconds: self.seconds as f64,
            p50_us: at(0.5),
            p99_us: at(0.99),
            arbiter: *is_arbitrated,
            cpus_least: cpus.iter().copied().min().unwrap_or(0),
            cpus_mean: cpus.iter().sum::<u64>() as f64 / cpus.len().max(1) as f64,
            cpus_most: cpus.iter().copied().max().unwrap_or(0),
        })
    }
}

/// Makes a request. Returns whether the answer is the right one; one of another length makes all that follow wrong.
fn exchange(stream: &mut TcpStream, exchange: &Exchange, room: &mut Vec<u8>) -> io::Result<bool> {
    stream.write_all(&exchange.request)?;
    room.resize(exchange.answer.len(), 0);
    stream.read_exact(room)?;
    Ok(*room == exchange.answer)
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.run() {
        Ok(report) => {
            let json = serde_json::to_string(&report).expect("numbers are JSON");
            let Report { requests, wrong, seconds, p50_us, p99_us, cpus_least, cpus_mean, cpus_most, .. } = &report;
            if args.json {
                println!("{json}");
            } else {
                println!("{requests} requests in {seconds} s, {wrong} answers wrong");
                println!("half of them took {p50_us:.0} us at most, 99 % {p99_us:.0} us");
                println!("CPUs of the server: {cpus_mean:.1} on average, {cpus_least} to {cpus_most}");
            }
            if report.wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("ekiden-memcached-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn an_answer_of_another_byte_is_wrong() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"STORED\r\nSTORAD\r\n").unwrap();
        let set = Args::parse_from(["load"]).set(1);
        let answers = [0, 1].map(|_| exchange(&mut stream, &set, &mut Vec::new()).unwrap());
        assert_eq!(answers, [true, false]);
    }

    #[test]
    fn help_fits_a_terminal_and_has_examples() {
        let help = Args::command().term_width(80).render_long_help().to_string();
        assert!(help.contains("Examples:\n  ekiden-memcached-load\n"), "{help}");
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:?}");
    }

    #[test]
    fn requests_know_their_answers() {
        let args = Args::parse_from(["load", "--keys", "3", "--gets", "2", "--bytes", "4"]);
        let all = args.exchanges(0);
        assert_eq!(
            (all[0].request.as_slice(), all[0].answer.as_slice()),
            (&b"set key0 0 0 4\r\n0000\r\n"[..], &b"STORED\r\n"[..])
        );
        let next = String::from_utf8_lossy(&all[1].request).into_owned();
        let first = 104_729 % 3;
        assert_eq!(next, format!("get key{first} key{}\r\n", (first + 1) % 3));
        assert!(all[1].answer.ends_with(b"\r\nEND\r\n") && all.len() == REQUESTS);
    }
}
