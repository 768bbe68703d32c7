//! Answers the page's questions on this machine, and only to it.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use ekiden_check::Verdict;
use ekiden_trace::Header;

use crate::{Model, Notes, PAGE, PLACE, Summary, tile::TileId};

/// A browser that takes longer to ask, or to take its answer, has gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a request, with all that browsers tell about themselves.
const REQUEST_MAX: usize = 64 << 10;

/// Headers of a request.
const HEADERS_MAX: usize = 128;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port is taken, most likely.
    #[error("cannot listen on port {port} of this machine: {why}; give another with --port")]
    Listen {
        /// The port.
        port: u16,
        /// What the system says.
        why: io::Error,
    },
}

/// Serves one trace to browsers of this machine: a thread and a connection for each request.
pub struct Server {
    listener: TcpListener,
    port: u16,
    is_over: AtomicBool,
    shown: OnceLock<(Header, Model, Notes)>,
    verdict: OnceLock<Verdict>,
}

/// Status, type and body.
type Answer = (&'static str, &'static str, Vec<u8>);

impl Server {
    /// Listens on a port of the loopback device; 0 takes any.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn new(port: u16) -> Result<Arc<Self>, ServeError> {
        let listen = || -> io::Result<(TcpListener, u16)> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
            let port = listener.local_addr()?.port();
            Ok((listener, port))
        };
        let (listener, port) = listen().map_err(|why| ServeError::Listen { port, why })?;
        let is_over = AtomicBool::new(false);
        Ok(Arc::new(Self { listener, port, is_over, shown: OnceLock::new(), verdict: OnceLock::new() }))
    }

    /// Where it is, for a browser.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Sets what the page shows; until then the page says that the trace is being opened. Only the first call counts.
    pub fn show(&self, header: Header, model: Model, notes: Notes) {
        // This fails after the first call.
        let _ = self.shown.set((header, model, notes));
    }

    /// Tells what the checks have found; until then the page says that they are at work. Only the first call counts.
    pub fn found(&self, verdict: Verdict) {
        // This fails after the first call.
        let _ = self.verdict.set(verdict);
    }

    /// Answers until [`Server::stop`].
    pub fn run(self: &Arc<Self>) {
        for stream in self.listener.incoming() {
            if self.is_over.load(Relaxed) {
                return;
            }
            let server = Arc::clone(self);
            // A browser may disconnect at any time, which is no error.
            thread::spawn(move || stream.and_then(|mut stream| server.talk(&mut stream)));
        }
    }

    /// Lets [`Server::run`] return.
    pub fn stop(&self) {
        self.is_over.store(true, Relaxed);
        // It waits for a connection. If there can be none, it has returned.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }

    /// One request, one answer.
    fn talk(&self, stream: &mut TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut request = Vec::new();
        let mut piece = [0; 4096];
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let len = stream.read(&mut piece)?;
            if len == 0 || request.len() > REQUEST_MAX {
                return Ok(());
            }
            request.extend(&piece[..len]);
        }
        let (status, kind, body) = self.answer(&request);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(&body)
    }

    fn answer(&self, request: &[u8]) -> Answer {
        let plain = |status, text: &str| (status, "text/plain; charset=utf-8", text.as_bytes().to_vec());
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        if parsed.parse(request).is_err() {
            return plain("400 Bad Request", "this is no request");
        }
        // A page from elsewhere must not read the trace by giving this machine's address a name of its own.
        let host = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
        let host = host.map(|host| String::from_utf8_lossy(host.value).into_owned()).unwrap_or_default();
        if !matches!(host.split(':').next(), Some("127.0.0.1" | "localhost")) {
            return plain("403 Forbidden", "ask for http://127.0.0.1");
        }
        if parsed.method != Some("GET") {
            return plain("405 Method Not Allowed", "there is nothing to be changed here");
        }
        let path = parsed.path.unwrap_or_default();
        if path == "/" {
            let note = "<script>window.ekidenServer=true</script>";
            return ("200 OK", "text/html; charset=utf-8", PAGE.replacen(PLACE, note, 1).into_bytes());
        }
        const JSON: &str = "application/json";
        let verdict = self.verdict.get();
        let Some((header, model, notes)) = self.shown.get() else {
            return ("200 OK", JSON, b"null".to_vec());
        };
        match path {
            "/summary" => ("200 OK", JSON, Summary::of(header, model, verdict, notes).to_json()),
            "/verdict" => ("200 OK", JSON, serde_json::to_vec(&verdict).expect("plain data has a JSON form")),
            path => match tile_of(path).and_then(|id| model.tile(id)) {
                Some(tile) => ("200 OK", "application/octet-stream", tile),
                None => plain("404 Not Found", "there is no such page"),
            },
        }
    }
}

/// `/tile/DEPTH/INDEX`
fn tile_of(path: &str) -> Option<TileId> {
    let (depth, index) = path.strip_prefix("/tile/")?.split_once('/')?;
    Some(TileId { depth: depth.parse().ok()?, index: index.parse().ok()? })
}
