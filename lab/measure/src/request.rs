//! What a machine asks the guest that it has booted: one measurement with all that it depends on, as JSON. The answer is what was found, as
//! JSON too.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use ekiden_vm::{Status, Stream, Vm};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    bench::{
        Unit, applications, fairness::FairnessBench, hints::HintsBench, memory::MemoryBench, messaging::MessagingBench,
        pipe::PipeBench, policies::PoliciesBench, record, record::RecordBench, share::ShareBench,
        sleeper::SleeperBench, upgrade::UpgradeBench, watch::WatchBench,
    },
    failure::{Exit, Failure},
    fidelity::Real,
    machine::{follow_with, guest_command},
    reproduce::{Cos, EkibenTables, Locality},
};

/// The command of `ekiden` that answers.
const COMMAND: &str = "measure-request";

/// Something that is measured in the kernel under this process, on a machine or in a guest.
pub(crate) trait Measurement: Clone + Into<Request> {
    /// The figures that are found.
    type Figures: Serialize + DeserializeOwned;

    /// Measures it; `unit` is what the clock counts here.
    fn measure(&self, unit: Unit) -> Result<Self::Figures>;
}

macro_rules! requests {
    ($($name:ident($what:ty),)*) => {
        /// Every measurement that a guest can be asked for.
        #[derive(Serialize, Deserialize)]
        pub(crate) enum Request {
            $($name($what),)*
        }

        impl Request {
            /// Measures, and says as JSON what was found.
            fn answer(&self, unit: Unit) -> Result<String> {
                Ok(match self {
                    $(Self::$name(what) => serde_json::to_string(&what.measure(unit)?)?,)*
                })
            }
        }

        $(impl From<$what> for Request {
            fn from(what: $what) -> Self {
                Self::$name(what)
            }
        })*
    };
}

requests! {
    Applications(applications::Programs),
    Cos(Cos),
    EkibenTables(EkibenTables),
    Fairness(FairnessBench),
    Fidelity(Real),
    Hints(HintsBench),
    Locality(Locality),
    Memory(MemoryBench),
    Messaging(MessagingBench),
    Pipe(PipeBench),
    Policies(PoliciesBench),
    Record(RecordBench),
    Recording(record::Recording),
    Share(ShareBench),
    Sleeper(SleeperBench),
    Upgrade(UpgradeBench),
    Watch(WatchBench),
}

/// A request as it is sent.
#[derive(Serialize, Deserialize)]
struct Sent {
    /// What the guest's clock counts, which it cannot find out by itself.
    unit: Unit,
    request: Request,
}

/// Has a guest measure; `told` is given each line that it says meanwhile.
pub(crate) fn ask<M: Measurement>(vm: &Vm, what: &M, unit: Unit, told: &mut dyn FnMut(&str)) -> Result<M::Figures> {
    let sent = serde_json::to_string(&Sent { unit, request: what.clone().into() })?;
    let (mut printed, mut said) = (Vec::new(), String::new());
    let status = follow_with(vm, &guest_command(["ekiden", COMMAND, &sent]), &mut |stream, bytes| match stream {
        Stream::Stdout => printed.extend_from_slice(bytes),
        Stream::Stderr => {
            said.push_str(&String::from_utf8_lossy(bytes));
            while let Some((line, rest)) = said.split_once('\n') {
                told(line);
                said = rest.to_owned();
            }
        }
    })?;
    if status != Status::Code(0) {
        let tail = vm.console().tail(20);
        let message = format!("it failed in the guest ({status}), see above; its console:\n{tail}");
        return Err(Failure::new(Exit::Other, message).into());
    }
    serde_json::from_slice(&printed).context("the guest printed something strange")
}

/// `ekiden measure-request`: answers what another `ekiden` has asked in its guest.
#[derive(Args)]
pub struct MeasureRequest {
    /// The request, as JSON
    request: String,
}

impl MeasureRequest {
    /// Runs the command; the exit code is that of the program.
    pub fn run(self) -> Result<ExitCode> {
        let Sent { unit, request } =
            serde_json::from_str(&self.request).context("this is no request of the same build of ekiden")?;
        match request.answer(unit) {
            Ok(answer) => println!("{answer}"),
            Err(error) => return applications::interrupted(error),
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::candidates::{Candidates, PolicyArgs};

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let candidates = Candidates::new(&["my-policy".to_owned()], &PolicyArgs::default());
        let sent = Sent { unit: Unit::Instructions, request: PipeBench::new(candidates, 7, 2_000).into() };
        let text = serde_json::to_string(&sent).unwrap();
        expect_test::expect![[
            r#"{"unit":"Instructions","request":{"Pipe":{"candidates":{"policies":["my-policy"],"agents":[],"source":{}},"repeat":7,"round_trips":2000}}}"#
        ]]
        .assert_eq(&text);
        let Sent { unit, request } = serde_json::from_str(&text).unwrap();
        assert_eq!(unit, Unit::Instructions);
        assert_eq!(serde_json::to_string(&Sent { unit, request }).unwrap(), text);
    }

    /// The options of a command as they are by default, sent and received.
    fn travels<M: Measurement + Args>() {
        let matches = M::augment_args(clap::Command::new("ekiden")).get_matches_from(["ekiden"]);
        let request: Request = M::from_arg_matches(&matches).unwrap().into();
        let text = serde_json::to_string(&request).unwrap();
        let received: Request = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(serde_json::to_string(&received).unwrap(), text);
    }

    #[test]
    fn the_options_of_every_command_can_be_sent() {
        travels::<applications::Programs>();
        travels::<Cos>();
        travels::<EkibenTables>();
        travels::<FairnessBench>();
        travels::<HintsBench>();
        travels::<Locality>();
        travels::<MemoryBench>();
        travels::<MessagingBench>();
        travels::<PipeBench>();
        travels::<PoliciesBench>();
        travels::<RecordBench>();
        travels::<ShareBench>();
        travels::<SleeperBench>();
        travels::<UpgradeBench>();
        travels::<WatchBench>();
    }
}
