//! The server: a user-level thread for each connection.

use std::{
    io::{self, Read, Write},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ekiden_two_level::{Listener, Stream, spawn, status, yield_now};

use crate::{
    protocol::{Command, LINE_MAX, Parsed, VALUE_MAX, parse, words},
    store::{Became, Counted, Store},
};

/// Most bytes of one read.
const READ: usize = 16 << 10;

/// Answers are sent when there are this many bytes of them, and after each read.
const WRITE: usize = 64 << 10;

/// Connections, and what they share.
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) connections_max: u64,
    connections: AtomicU64,
    connected: AtomicU64,
}

impl Server {
    pub(crate) fn new(bytes_max: usize, connections_max: u64) -> Self {
        Self {
            store: Store::new(bytes_max),
            connections_max,
            connections: AtomicU64::new(0),
            connected: AtomicU64::new(0),
        }
    }

    /// Accepts connections, in a user-level thread. Returns if the socket cannot be used.
    pub(crate) fn accept(self: &Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let listener = Listener::new(listener)?;
        loop {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                // One that is gone already; or no descriptor is left, and others are served until one is.
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(1));
                    yield_now();
                    continue;
                }
            };
            let connection = Connection::new(self.clone());
            if self.connections.load(Relaxed) > self.connections_max {
                // A new connection has room for it. If it is closed, so it is to be.
                let _ = stream.write(b"ERROR Too many open connections\r\n");
                continue;
            }
            // SAFETY: a connection, its stream and its buffers are `Send`, and a store's lock is never held where it waits.
            let spawned = unsafe { spawn(move || connection.serve(stream)) };
            if let Err(error) = spawned {
                eprintln!("a connection is refused: {error}");
            }
            // However many come, those that are there are served.
            yield_now();
        }
    }
}

/// A connection as long as it is open.
struct Connection {
    server: Arc<Server>,
    pending: Pending,
    answers: Vec<u8>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.server.connections.fetch_sub(1, Relaxed);
    }
}

/// Whether there is more to come on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    On,
    Ends,
}

impl Connection {
    fn new(server: Arc<Server>) -> Self {
        server.connections.fetch_add(1, Relaxed);
        server.connected.fetch_add(1, Relaxed);
        Self { server, pending: Pending::default(), answers: Vec::new() }
    }

    /// Answers until the client is gone or says `quit`.
    fn serve(mut self, mut stream: Stream) {
        let mut room = vec![0; READ];
        while let Ok(length @ 1..) = stream.read(&mut room) {
            self.pending.come(&room[..length]);
            let goes = self.answer(&mut stream);
            let sent = stream.write_all(&self.answers);
            self.answers.clear();
            if sent.is_err() || !matches!(goes, Ok(Goes::On)) {
                break;
            }
            // A client that always has more does not hold up the others.
            yield_now();
        }
    }

    /// Answers all requests that have come, and sends when there is much.
    fn answer(&mut self, to: &mut impl Write) -> io::Result<Goes> {
        let Self { server, pending, answers } = self;
        let mut goes = Goes::On;
        while goes == Goes::On {
            let bytes = match parse(pending.rest()) {
                Parsed::Incomplete => break,
                Parsed::Lost { answer } => {
                    answers.extend_from_slice(answer.as_bytes());
                    goes = Goes::Ends;
                    break;
                }
                Parsed::Wrong { answer, bytes } => {
                    answers.extend_from_slice(answer.as_bytes());
                    bytes
                }
                Parsed::Request { command: Command::Get { keys, with_cas }, bytes, .. } => {
                    for key in words(keys) {
                        server.show(key, with_cas, answers);
                        send_if_much(answers, to)?;
                    }
                    answers.extend_from_slice(b"END\r\n");
                    bytes
                }
                Parsed::Request { command: Command::Quit, .. } => {
                    goes = Goes::Ends;
                    break;
                }
                Parsed::Request { command, is_quiet, bytes } => {
                    let before = answers.len();
                    server.carry_out(command, answers);
                    if is_quiet {
                        answers.truncate(before);
                    }
                    bytes
                }
            };
            pending.done(bytes);
            send_if_much(answers, to)?;
        }
        pending.compact();
        Ok(goes)
    }
}

fn send_if_much(answers: &mut Vec<u8>, to: &mut impl Write) -> io::Result<()> {
    if answers.len() >= WRITE {
        to.write_all(answers)?;
        answers.clear();
        // What a large value needed, no small one does.
        answers.shrink_to(WRITE);
    }
    Ok(())
}

/// What has come and was not answered yet.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    /// Up to here it was answered.
    at: usize,
    /// Bytes to pass over that have not come yet.
    skip: usize,
}

impl Pending {
    fn come(&mut self, bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        self.bytes.extend_from_slice(&bytes[skipped..]);
        // So that a client cannot have more kept by how it cuts its requests.
        debug_assert!(self.bytes.len() <= LINE_MAX + VALUE_MAX + 2 + READ);
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    fn done(&mut self, bytes: usize) {
        let here = bytes.min(self.rest().len());
        self.at += here;
        self.skip = bytes - here;
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.shrink_to(2 * READ);
    }
}

impl Server {
    fn show(&self, key: &[u8], with_cas: bool, answers: &mut Vec<u8>) {
        self.store.get(key, |item| {
            answers.extend_from_slice(b"VALUE ");
            answers.extend_from_slice(key);
            let more = if with_cas { format!(" {}", item.cas) } else { String::new() };
            answers.extend_from_slice(format!(" {} {}{more}\r\n", item.flags, item.value.len()).as_bytes());
            answers.extend_from_slice(&item.value);
            answers.extend_from_slice(b"\r\n");
        });
    }

    fn carry_out(&self, command: Command<'_>, answers: &mut Vec<u8>) {
        let store = &self.store;
        let is_there = |is_there, answer| if is_there { answer } else { "NOT_FOUND\r\n" };
        let answer = match command {
            Command::Store { how, key, flags, expires, value } => match store.store(how, key, flags, expires, value) {
                Became::Stored => "STORED\r\n",
                Became::NotStored => "NOT_STORED\r\n",
                Became::Exists => "EXISTS\r\n",
                Became::NotFound => "NOT_FOUND\r\n",
                Became::NoRoom => "SERVER_ERROR out of memory storing object\r\n",
            },
            Command::Delete { key } => is_there(store.delete(key), "DELETED\r\n"),
            Command::Touch { key, expires } => is_there(store.touch(key, expires), "TOUCHED\r\n"),
            Command::Count { key, up, by } => match store.count(key, up, by) {
                Counted::Now(number) => {
                    answers.extend_from_slice(format!("{number}\r\n").as_bytes());
                    ""
                }
                Counted::NotFound => "NOT_FOUND\r\n",
                Counted::NotANumber => "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
                Counted::NoRoom => "SERVER_ERROR out of memory in incr\r\n",
            },
            Command::FlushAll { after_s } => {
                store.flush_all(after_s);
                "OK\r\n"
            }
            Command::Verbosity => "OK\r\n",
            Command::Version => concat!("VERSION ekiden-", env!("CARGO_PKG_VERSION"), "\r\n"),
            Command::Stats => {
                answers.extend_from_slice(self.stats().as_bytes());
                "END\r\n"
            }
            Command::Get { .. } | Command::Quit => "",
        };
        answers.extend_from_slice(answer.as_bytes());
    }

    /// As memcached names them, and what the runtime counts by names of its own.
    fn stats(&self) -> String {
        let (store, counts) = (&self.store, &self.store.counts);
        let (items, bytes) = store.size();
        let (hits, misses) = (counts.hits.load(Relaxed), counts.misses.load(Relaxed));
        let runtime = status().unwrap_or_default();
        let stats = [
            ("pid", std::process::id().into()),
            ("uptime", store.uptime_s()),
            ("time", store.now_s()),
            ("curr_connections", self.connections.load(Relaxed)),
            ("total_connections", self.connected.load(Relaxed)),
            ("max_connections", self.connections_max),
            ("cmd_get", hits + misses),
            ("cmd_set", counts.sets.load(Relaxed)),
            ("get_hits", hits),
            ("get_misses", misses),
            ("curr_items", items as u64),
            ("total_items", counts.stored.load(Relaxed)),
            ("bytes", bytes as u64),
            ("limit_maxbytes", store.bytes_max as u64),
            ("evictions", counts.evictions.load(Relaxed)),
            ("arbiter", runtime.is_arbitrated.into()),
            ("cpus", runtime.given.into()),
            ("cpus_wanted", runtime.wanted.into()),
            ("cpus_most", runtime.most.into()),
            ("cpus_asked_back", runtime.asked_back),
            ("threads_handed_over", runtime.handed_over),
            ("threads_stolen", runtime.stolen),
            ("thread_steps", runtime.steps),
        ];
        stats.iter().map(|(name, value)| format!("STAT {name} {value}\r\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn connection(bytes_max: usize) -> Connection {
        Connection::new(Arc::new(Server::new(bytes_max, 10)))
    }

    /// Answers to bytes that come in pieces of this size.
    fn answers(connection: &mut Connection, input: &[u8], piece: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        for piece in input.chunks(piece.min(READ)) {
            connection.pending.come(piece);
            let goes = connection.answer(&mut sent).unwrap();
            sent.append(&mut connection.answers);
            if goes == Goes::Ends {
                break;
            }
        }
        sent
    }

    #[test]
    fn answers_do_not_depend_on_how_requests_are_cut() {
        let large = format!("set large 0 0 {}\r\n", VALUE_MAX + 1).into_bytes();
        let input = [
            b"set a 5 0 3\r\nabc\r\nget a b\r\nincr a 1\r\nset n 0 0 1 noreply\r\n7\r\nincr n 3\r\n".to_vec(),
            large,
            vec![b'x'; VALUE_MAX + 1],
            b"\r\nget n\r\nnonsense\r\nquit\r\nversion\r\n".to_vec(),
        ]
        .concat();
        let expected = "STORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\n\
            CLIENT_ERROR cannot increment or decrement non-numeric value\r\n10\r\n\
            SERVER_ERROR object too large for cache\r\nVALUE n 0 2\r\n10\r\nEND\r\nERROR\r\n";
        for piece in [1, 7, 1000, READ] {
            let sent = answers(&mut connection(1 << 26), &input, piece);
            assert_eq!(String::from_utf8(sent).unwrap(), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn answers_are_sent_before_they_take_much_memory() {
        struct Most(usize);
        impl Write for Most {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.max(bytes.len());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut connection = connection(1 << 26);
        connection.server.store.store(crate::protocol::How::Set, b"k", 0, 0, &vec![0; VALUE_MAX]);
        let get = format!("get{}\r\n", " k".repeat(500));
        connection.pending.come(get.as_bytes());
        let mut most = Most(0);
        connection.answer(&mut most).unwrap();
        assert!((VALUE_MAX..VALUE_MAX + 100).contains(&most.0), "{}", most.0);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_keep_much(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..30),
            line in "(set|add|cas|gets|incr|touch) [a-c]{1,2} [0-9]{1,7} [0-9]{1,3} [0-9]{1,8}( noreply)?",
        ) {
            let mut connection = connection(1 << 16);
            let mut sent = Vec::new();
            for piece in pieces.iter().map(Vec::as_slice).chain([line.as_bytes(), b"\r\n", &[7; 500]]) {
                connection.pending.come(piece);
                if connection.answer(&mut sent).unwrap() == Goes::Ends {
                    break;
                }
                prop_assert!(connection.pending.bytes.capacity() <= 2 * READ);
                prop_assert!(connection.server.store.size().1 <= 1 << 16);
            }
        }
    }
}
