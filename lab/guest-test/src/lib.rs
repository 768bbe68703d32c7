//! What `ekiden-test`, the program that runs guest tests, can be asked: in words by a person or a test, and as JSON by commands that measure.
//!
//! A crate of its own because commands that measure are also built without BPF, which `ekiden-test` itself needs.
#![forbid(unsafe_code)]

mod guest_test;
mod part;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use ekiden::Call;
use serde::{Deserialize, Serialize};

pub use self::{guest_test::GuestTest, part::Part};

/// What the program is called.
pub const PROGRAM: &str = "ekiden-test";

/// The command of the program that takes a request.
const COMMAND: &str = "request";

/// A guest test, and where the modules are that it loads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The directory with the modules.
    pub modules: PathBuf,
    /// The guest test.
    pub guest_test: GuestTest,
}

impl Request {
    /// The command that asks the program for it.
    ///
    /// # Errors
    /// A path in it is not UTF-8.
    pub fn argv(&self) -> Result<[String; 3]> {
        let json = serde_json::to_string(self).context("a request cannot be written")?;
        Ok([PROGRAM.to_owned(), COMMAND.to_owned(), json])
    }
}

/// The arguments of the program.
#[derive(Parser)]
#[command(name = PROGRAM, about = "Guest tests on a real kernel")]
pub struct Arguments {
    /// Where the modules are
    #[arg(long, global = true, default_value = "/lab")]
    modules: PathBuf,
    #[command(subcommand)]
    asked: Asked,
}

/// Where the recording of a guest test goes.
#[derive(Clone, Debug, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct To {
    /// The file to write.
    #[arg(long)]
    pub to: PathBuf,
}

#[derive(Subcommand)]
enum Asked {
    #[command(flatten)]
    InWords(GuestTest),
    /// Runs what another program of the same build asks for
    Request {
        /// The request, as JSON
        request: String,
    },
}

impl Arguments {
    /// The request that is asked for.
    ///
    /// # Errors
    /// The JSON is no request.
    pub fn request(self) -> Result<Request> {
        match self.asked {
            Asked::InWords(guest_test) => Ok(Request { modules: self.modules, guest_test }),
            Asked::Request { request } => {
                serde_json::from_str(&request).context("this is no request of the same build of ekiden")
            }
        }
    }
}

/// A storm of everything that happens to tasks, CPUs and policies.
#[derive(Args, Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StormOfAll {
    /// For how long, by the guest's clock.
    #[arg(long)]
    pub seconds: u64,
    /// What happens when.
    #[arg(long)]
    pub seed: u64,
    /// A thousand threads, of all nice values and in groups of all weights.
    #[arg(long = "wide")]
    pub is_wide: bool,
    /// How long a thread may have no CPU that wants one, in milliseconds.
    #[arg(long)]
    pub wait_ms_max: u64,
}

/// Calls that are to panic.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Panics {
    /// How often each goes wrong.
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
    /// Only these.
    #[arg(long, value_delimiter = ',')]
    calls: Vec<String>,
}

impl Panics {
    /// These calls.
    pub fn calls(&self) -> impl Iterator<Item = Call> {
        Call::ALL.into_iter().filter(|call| self.calls.is_empty() || self.calls.iter().any(|name| name == call.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_words(words: &[&str]) -> Request {
        let program = [PROGRAM].iter().chain(words);
        Arguments::try_parse_from(program).unwrap_or_else(|error| panic!("{words:?}: {error}")).request().unwrap()
    }

    /// A request in words arrives as it was sent.
    fn travels(words: &[&str]) {
        let sent = in_words(words);
        let received = Arguments::try_parse_from(sent.argv().unwrap()).unwrap().request().unwrap();
        assert_eq!(received, sent);
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        travels(&["list", "--modules", "/host/modules", "--rounds=3", "--only=loop,lock held", "--part=1/3"]);
        travels(&["list", "--beside=false"]);
        travels(&["generated", "--first=0", "--from=7", "--count=100"]);
        travels(&["still"]);
        travels(&["storm", "--policy=my-policy", "--neighbour=4294967295"]);
        travels(&["victim", "--policies=fifo,wfq", "--seconds=0.3"]);
        travels(&["due", "--policy=wfq", "--others=3", "--nices", "-5", "19", "--seconds", "1", "2"]);
        travels(&["faults", "--calls=timer,task_tick"]);
        travels(&["tried", "--", "sh", "-c", "echo \"$0\"", "--policy"]);
        travels(&["refusals"]);
    }

    #[test]
    fn the_usual_policies_are_several() {
        let policies = ["fifo", "wfq", "cfs"].map(str::to_owned).to_vec();
        let upgrades = GuestTest::Upgrades { rounds: 60, patience_us: None, policies };
        assert_eq!(in_words(&["upgrades", "--rounds=60"]).guest_test, upgrades);
    }

    #[test]
    fn what_is_sent_is_json() {
        let request = in_words(&["storm", "--policy=wfq", "--modules=/host/modules"]);
        let [program, command, json] = request.argv().unwrap();
        assert_eq!((program.as_str(), command.as_str()), ("ekiden-test", "request"));
        let expected = r#"{"modules":"/host/modules","guest_test":{"Storm":{"policy":"wfq","neighbour":null}}}"#;
        assert_eq!(json, expected);
    }

    #[test]
    fn what_another_build_sends_is_refused() {
        let arguments = Arguments::try_parse_from([PROGRAM, COMMAND, "{\"guest_test\":\"Nothing\"}"]).unwrap();
        let told = arguments.request().unwrap_err().to_string();
        assert_eq!(told, "this is no request of the same build of ekiden");
    }
}
