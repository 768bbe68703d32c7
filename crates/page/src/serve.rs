//! Answers the page's questions on this machine, and only to it.

use std::{
    io::Cursor,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, OnceLock},
};

use ekiden_check::Violation;
use ekiden_trace::Header as TraceHeader;
use tiny_http::{Header, Method, Request, Response};

use crate::{Model, Notes, PAGE, Summary, tile::TileId};

/// Requests that are answered at a time: a browser asks for as many.
const THREADS: usize = 4;

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
        why: String,
    },
}

/// What is answered from.
struct Answers {
    header: TraceHeader,
    model: Model,
    notes: Notes,
    violations: OnceLock<Vec<Violation>>,
}

/// Serves one trace to browsers of this machine.
pub struct Server {
    http: tiny_http::Server,
    answers: Answers,
}

type Answer = Response<Cursor<Vec<u8>>>;

impl Server {
    /// Listens on a port of the loopback device; 0 takes any.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn new(port: u16, header: TraceHeader, model: Model, notes: Notes) -> Result<Arc<Self>, ServeError> {
        let http = tiny_http::Server::http((Ipv4Addr::LOCALHOST, port))
            .map_err(|error| ServeError::Listen { port, why: error.to_string() })?;
        Ok(Arc::new(Self { http, answers: Answers { header, model, notes, violations: OnceLock::new() } }))
    }

    /// Where it is, for a browser.
    pub fn url(&self) -> String {
        let port = self.http.server_addr().to_ip().map_or(0, |address: SocketAddr| address.port());
        format!("http://127.0.0.1:{port}/")
    }

    /// Tells what the checks have found; until then the page says that they are at work. Only the first call counts.
    pub fn found(&self, violations: Vec<Violation>) {
        // Whoever told them first was right.
        let _ = self.answers.violations.set(violations);
    }

    /// Answers until [`Server::stop`].
    pub fn run(&self) {
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while let Ok(request) = self.http.recv() {
                        let answer = self.answers.to(&request);
                        // Whoever asked may have gone.
                        let _ = request.respond(answer);
                    }
                });
            }
        });
    }

    /// Lets [`Server::run`] return.
    pub fn stop(&self) {
        (0..THREADS).for_each(|_| self.http.unblock());
    }
}

impl Answers {
    fn to(&self, request: &Request) -> Answer {
        // A page from elsewhere must not read the trace by giving this machine's address a name of its own.
        let host =
            request.headers().iter().find(|header| header.field.equiv("Host")).map(|header| header.value.as_str());
        let name = host.and_then(|host| host.rsplit_once(':')).map_or(host, |(name, _)| Some(name));
        if !matches!(name, Some("127.0.0.1" | "localhost")) {
            return plain(403, "ask for http://127.0.0.1");
        }
        if !matches!(request.method(), Method::Get | Method::Head) {
            return plain(405, "there is nothing to be changed here");
        }
        let path = request.url().split('?').next().unwrap_or_default();
        match path {
            "/" => {
                let note = "<script>window.ekidenServer=true</script>";
                typed("text/html; charset=utf-8", PAGE.replacen("<!--ekiden:data-->", note, 1).into_bytes())
            }
            "/summary" => {
                let violations = self.violations.get().map(Vec::as_slice);
                let summary = Summary::of(&self.header, &self.model, violations, &self.notes);
                typed("application/json", summary.to_json())
            }
            "/violations" => {
                let json = serde_json::to_vec(&self.violations.get()).expect("plain data has a JSON form");
                typed("application/json", json)
            }
            path => match tile_of(path).and_then(|id| self.model.tile(id)) {
                Some(tile) => typed("application/octet-stream", tile),
                None => plain(404, "there is no such page"),
            },
        }
    }
}

/// `/tile/DEPTH/INDEX`
fn tile_of(path: &str) -> Option<TileId> {
    let (depth, index) = path.strip_prefix("/tile/")?.split_once('/')?;
    Some(TileId { depth: depth.parse().ok()?, index: index.parse().ok()? })
}

fn typed(kind: &str, bytes: Vec<u8>) -> Answer {
    let header = Header::from_bytes("Content-Type", kind).expect("types are plain text");
    Response::from_data(bytes).with_header(header)
}

fn plain(status: u16, text: &str) -> Answer {
    typed("text/plain; charset=utf-8", text.as_bytes().to_vec()).with_status_code(status)
}
