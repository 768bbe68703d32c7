//! The messages between the host and the init process of a guest: one JSON object per line, both ways.
#![forbid(unsafe_code)]

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Name of the virtio-serial port that carries the messages.
pub const PORT_NAME: &str = "ekiden";

/// File in the initramfs that lists the kernel modules to load before anything else, one path per line, in order.
pub const MODULE_LIST: &str = "/etc/ekiden-modules";

/// Tag of the virtiofs share that is mounted at `/host`.
pub const SHARE_TAG: &str = "host";

/// What the host asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Asks for a sign of life. The answer repeats `nonce`, so that what an earlier user left in the channel can be told apart.
    Hello {
        /// Any number.
        nonce: u64,
    },
    /// Start a command, in a process group of its own or in a terminal.
    Run {
        /// Chosen by the host; names the command in every later message.
        id: u64,
        /// Program (looked up in `PATH`) and arguments.
        argv: Vec<String>,
        /// Variables added to the guest's own.
        env: Vec<(String, String)>,
        /// Working directory; `/` if absent.
        cwd: Option<String>,
        /// The size of its terminal. What it writes to that is its standard output. Without one it has pipes, and no input.
        terminal: Option<Size>,
    },
    /// Bytes that were typed at a command's terminal.
    Input {
        /// Which command.
        id: u64,
        /// The bytes of the keys.
        #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
        data: Vec<u8>,
    },
    /// A command's terminal has another size from now on.
    Resize {
        /// Which command.
        id: u64,
        /// The new size.
        size: Size,
    },
    /// Send a signal to a command's whole process group, or to all groups in its terminal.
    Kill {
        /// Which command.
        id: u64,
        /// Signal number.
        signal: i32,
    },
    /// Switch the machine off.
    Poweroff,
}

/// What the guest answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Reply {
    /// Answer to [`Request::Hello`].
    Hello {
        /// The number that was asked with.
        nonce: u64,
        /// The running kernel's release.
        release: String,
        /// What went wrong while booting, though not badly enough to stop.
        problems: Vec<String>,
    },
    /// A command runs.
    Started {
        /// Which command.
        id: u64,
        /// Its process id in the guest.
        pid: i32,
    },
    /// A command wrote something.
    Output {
        /// Which command.
        id: u64,
        /// Where it wrote.
        stream: Stream,
        /// The bytes that it wrote.
        #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
        data: Vec<u8>,
    },
    /// A command ended; all it wrote has been sent.
    Exited {
        /// Which command.
        id: u64,
        /// How it ended.
        status: Status,
    },
    /// A request about `id` could not be carried out.
    Failed {
        /// Which command.
        id: u64,
        /// Why.
        error: String,
    },
}

/// How much a terminal shows; zeros if that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// One of a command's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Status {
    /// Whether the command exited with code 0.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

fn to_base64<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&BASE64_STANDARD.encode(data))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    BASE64_STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_survives_the_channel_byte_for_byte() {
        let reply = Reply::Output { id: 7, stream: Stream::Stderr, data: vec![0, 0xff, b'\n', 0xc3] };
        let line = serde_json::to_string(&reply).unwrap();
        assert!(!line.contains('\n'), "one message is one line: {line}");
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), reply);
    }

    #[test]
    fn what_is_typed_survives_the_channel_byte_for_byte() {
        let request = Request::Input { id: 7, data: vec![3, 0xff, b'\n', 0] };
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'), "one message is one line: {line}");
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
    }

    #[test]
    fn a_command_has_a_terminal_only_if_a_size_is_given() {
        let terminal = |more: &str| {
            let line = format!(r#"{{"op":"run","id":1,"argv":["sh"],"env":[],"cwd":null{more}}}"#);
            match serde_json::from_str(&line) {
                Ok(Request::Run { terminal, .. }) => terminal,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(terminal(""), None);
        assert_eq!(terminal(r#","terminal":{"rows":24,"columns":80}"#), Some(Size { rows: 24, columns: 80 }));
    }

    #[test]
    fn a_line_that_is_no_message_is_an_error() {
        assert!(serde_json::from_str::<Reply>(r#"{"op":"output","id":1,"stream":"stdout","data":"*"}"#).is_err());
        assert!(serde_json::from_str::<Request>(r#"{"op":"dance"}"#).is_err());
        assert!(serde_json::from_str::<Request>(r#"{"op":"input","id":1,"data":"*"}"#).is_err());
        assert!(
            serde_json::from_str::<Request>(r#"{"op":"resize","id":1,"size":{"rows":70000,"columns":1}}"#).is_err()
        );
    }
}
