//! The server as a client sees it, through a socket of this machine's.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

const LONG: Duration = Duration::from_secs(30);

struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ekiden-memcached"));
        command.args(["--port", "0", "--cpus", "1..2"]).args(args);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
        Self { address: address.trim().parse().unwrap(), process }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Sends these bytes and `quit`, and returns the answers. An error if the connection was closed before.
    fn try_answers(&self, input: &[u8]) -> io::Result<String> {
        let mut stream = self.connect();
        let mut writes = stream.try_clone()?;
        let bytes = [input, b"quit\r\n"].concat();
        let writer = thread::spawn(move || writes.write_all(&bytes));
        let mut answers = Vec::new();
        let read = stream.read_to_end(&mut answers);
        let written = writer.join().unwrap();
        read.and(written)?;
        Ok(String::from_utf8(answers).unwrap())
    }

    fn answers(&self, input: &[u8]) -> String {
        self.try_answers(input).unwrap()
    }

    fn stat(&self, name: &str) -> u64 {
        let stats = self.answers(b"stats\r\n");
        let value = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        value.unwrap_or_else(|| panic!("{name}: {stats}")).parse().unwrap()
    }

    fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        let begin = Instant::now();
        let status = loop {
            match self.process.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(begin.elapsed() < LONG, "it does not end"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status, said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended if the test has gone well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn each_command_is_answered_as_memcached_does() {
    let server = Server::start(&[]);
    for (requests, answers) in [
        ("get a\r\n", "END\r\n"),
        ("set a 5 0 3\r\nabc\r\nget a\r\n", "STORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("set b 0 0 0 noreply\r\n\r\nget a none b\r\n", "VALUE a 5 3\r\nabc\r\nVALUE b 0 0\r\n\r\nEND\r\n"),
        (
            "add a 0 0 1\r\nx\r\nreplace c 0 0 1\r\nx\r\nreplace a 1 0 1\r\n7\r\n",
            "NOT_STORED\r\nNOT_STORED\r\nSTORED\r\n",
        ),
        (
            "incr a 5\r\ndecr a 20\r\nincr none 1\r\nincr b x\r\n",
            "12\r\n0\r\nNOT_FOUND\r\nCLIENT_ERROR invalid numeric delta argument\r\n",
        ),
        ("touch a 100\r\ntouch none 0\r\ndelete b\r\ndelete b\r\n", "TOUCHED\r\nNOT_FOUND\r\nDELETED\r\nNOT_FOUND\r\n"),
        ("set d 0 -1 1\r\nx\r\nget d\r\n", "STORED\r\nEND\r\n"),
        ("cas a 0 0 1 999999\r\nx\r\ncas none 0 0 1 1\r\nx\r\n", "EXISTS\r\nNOT_FOUND\r\n"),
        ("verbosity 1\r\nflush_all\r\nget a\r\nflush_all noreply\r\n", "OK\r\nOK\r\nEND\r\n"),
        ("\r\nwhat\r\nset a\r\nset a 0 0 x\r\n", "ERROR\r\nERROR\r\nERROR\r\nCLIENT_ERROR bad data chunk\r\n"),
    ] {
        assert_eq!(server.answers(requests.as_bytes()), answers, "{requests:?}");
    }
    assert!(server.answers(b"version\r\n").starts_with("VERSION "));
    let gets = server.answers(b"set a 0 0 1\r\nx\r\ngets a\r\n");
    let cas = gets.split_whitespace().nth(5).unwrap();
    let again = server.answers(format!("cas a 0 0 1 {cas}\r\ny\r\ncas a 0 0 1 {cas}\r\nz\r\nget a\r\n").as_bytes());
    assert_eq!(again, "STORED\r\nEXISTS\r\nVALUE a 0 1\r\ny\r\nEND\r\n");
    let (status, said) = server.end(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn an_item_is_gone_when_its_time_is_over() {
    let server = Server::start(&[]);
    assert_eq!(server.answers(b"set a 0 1 1\r\nx\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    let begin = Instant::now();
    while server.answers(b"get a\r\n") != "END\r\n" {
        assert!(begin.elapsed() < Duration::from_secs(5), "it is still there");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn memory_stays_within_its_limit() {
    let server = Server::start(&["--memory", "1"]);
    let value = "x".repeat(1000);
    let sets: String = (0..5_000).map(|key| format!("set key{key} 0 0 1000 noreply\r\n{value}\r\n")).collect();
    assert_eq!(server.answers(sets.as_bytes()), "");
    assert!(server.stat("bytes") <= 1 << 20 && server.stat("evictions") > 3_000, "{}", server.answers(b"stats\r\n"));
    assert!(server.answers(b"get key4999\r\n").starts_with("VALUE"), "the newest is there");
    assert_eq!(server.answers(b"get key0\r\n"), "END\r\n", "the oldest is not");
    let large = format!("set large 0 0 1048576\r\n{}\r\n", "x".repeat(1 << 20));
    assert_eq!(server.answers(large.as_bytes()), "SERVER_ERROR out of memory storing object\r\n");
}

#[test]
fn many_clients_have_right_answers_at_the_same_time() {
    let server = Server::start(&[]);
    let clients: Vec<_> = (0..20_u32)
        .map(|client| {
            let mut stream = BufReader::new(server.connect());
            thread::spawn(move || {
                for number in 0..200 {
                    let requests = format!("set k{client} 0 0 3\r\n{number:03}\r\nget k{client}\r\nincr all 1\r\n");
                    stream.get_mut().write_all(requests.as_bytes()).unwrap();
                    let mut lines = [const { String::new() }; 5];
                    lines.iter_mut().for_each(|line| _ = stream.read_line(line).unwrap());
                    let value = format!("{number:03}\r\n");
                    assert_eq!(lines[..4], ["STORED\r\n", &format!("VALUE k{client} 0 3\r\n"), &value, "END\r\n"]);
                }
            })
        })
        .collect();
    server.answers(b"set all 0 0 1\r\n0\r\n");
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn clients_of_ours_find_every_answer_right() {
    let server = Server::start(&[]);
    let mut clients = Command::new(env!("CARGO_BIN_EXE_ekiden-memcached-load"));
    clients.args([
        "--server",
        &server.address.to_string(),
        "--connections",
        "3",
        "--seconds",
        "1",
        "--gets",
        "9",
        "--json",
    ]);
    let output = clients.output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["wrong"]), (Some(0), &0.into()), "{report}");
    assert!(report["requests"].as_u64() > Some(100) && report["cpus_least"].as_u64() > Some(0), "{report}");
}

#[test]
fn clients_that_go_or_send_nonsense_hurt_no_other() {
    let server = Server::start(&["--connections", "8"]);
    let mut long = server.connect();
    long.write_all(&[b'x'; 8192]).unwrap();
    let mut answer = String::new();
    long.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "CLIENT_ERROR line too long\r\n");
    for round in 0..50_u8 {
        let mut stream = server.connect();
        // Half a request, or bytes that are none.
        stream.write_all(if round % 2 == 0 { b"set k 0 0 100\r\nab" } else { &[0xff, 0, 13, 7, 10, 200] }).unwrap();
    }
    let begin = Instant::now();
    while server.try_answers(b"set k 0 0 1\r\nx\r\n").ok().as_deref() != Some("STORED\r\n") {
        assert!(begin.elapsed() < LONG, "connections that have gone still count");
        thread::sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    while server.stat("curr_connections") > 1 {
        assert!(begin.elapsed() < LONG, "connections that have gone are still there");
        thread::sleep(Duration::from_millis(5));
    }
    let held: Vec<TcpStream> = (0..8).map(|_| server.connect()).collect();
    // They are accepted in the order in which they came.
    let mut refused = String::new();
    server.connect().read_to_string(&mut refused).unwrap();
    assert_eq!(refused, "ERROR Too many open connections\r\n");
    drop(held);
}

#[test]
fn it_says_once_that_there_is_no_arbiter_and_ends_well_on_ctrl_c() {
    let server = Server::start(&["--policy", "no-such-policy"]);
    assert_eq!((server.stat("arbiter"), server.stat("cpus") > 0), (0, true));
    // One that waits is closed.
    let mut waits = server.connect();
    let (status, said) = server.end(Signal::INT);
    assert_eq!(status.code(), Some(0), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("no CPUs are asked for, activations run as any other threads: "), "{said}");
    assert_eq!(waits.read(&mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn what_it_cannot_do_is_its_exit_status() {
    let server = Server::start(&[]);
    let code = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ekiden-memcached")).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = code(&["--port", &server.address.port().to_string()]);
    assert!(status == Some(1) && said.contains("another one by --port"), "{status:?} {said}");
    assert_eq!(code(&["--cpus", "7..2"]).0, Some(2));
    assert_eq!(code(&["--help"]).0, Some(0));
}
