//! A policy in the kernel of this machine, and everything as it was afterwards.

use std::{
    cell::RefCell,
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use ekiden_loader::{
    Access, Beside, CallLog, Config, LoadError, NumberedInstance, PolicyStatus, Prepared, Scope, Session, dump, header,
    loaded, needs_root, sysfs, unload, unload_all,
};
use ekiden_recording::Header;
use ekiden_vm::preflight_running;
use serde::{Deserialize, Serialize};

use crate::{
    failure::{Exit, Failure},
    flights,
};

/// How long the kernel may take to let go of a module.
const PATIENCE: Duration = Duration::from_secs(10);

/// The length of a record of a call.
const RECORD_BYTES: u64 = 64;

/// Where the reason is kept for which a policy was taken out: the module that knows it is unloaded.
const LAST_FAULT: &str = "/run/ekiden/last-fault.json";

/// The variable that says that the kernel has been judged: in a guest, whose host has read the same type information.
pub const JUDGED: &str = "EKIDEN_KERNEL_JUDGED";

/// How a policy is to be run.
pub struct Plan {
    /// The name of the policy.
    pub policy: String,
    /// Its parameters, as `name=value`, with spaces between.
    pub params: String,
    /// What a policy of this name has saved in an agent, for this one to continue from.
    pub saved: Vec<u8>,
    /// Whether only tasks of class SCHED_EXT are scheduled.
    pub attached: bool,
    /// For how many tasks there is room.
    pub max_tasks: u32,
    /// Memory for the policy itself.
    pub arena_mib: u64,
    /// Memory for the newest calls of each CPU; 0 for no flight recorder.
    pub flight_kib: u64,
    /// Where its last calls are saved if it is taken out.
    pub flights: PathBuf,
    /// The directory with the modules.
    pub modules: PathBuf,
    /// Whether another policy can take over.
    pub upgradable: bool,
    /// What to do if policies run already.
    pub beside: Beside,
    /// Who may choose it for their tasks.
    pub access: Access,
}

impl Plan {
    /// The defaults.
    pub fn new(policy: &str, modules: &Path) -> Self {
        let config = Config::new(policy, Vec::new());
        Self {
            policy: policy.to_owned(),
            params: String::new(),
            saved: Vec::new(),
            attached: false,
            max_tasks: config.max_tasks,
            arena_mib: config.arena_bytes >> 20,
            flight_kib: config.call_log_records * RECORD_BYTES / 1024,
            flights: flights::usual(),
            modules: modules.to_owned(),
            upgradable: true,
            beside: Beside::Nobody,
            access: Access::Root,
        }
    }

    /// Puts the policy into the kernel. If that fails, everything is as it was.
    pub fn start(&self) -> Result<Held> {
        let guard = Unload::new(self.beside)?;
        self.held(guard, Session::start(&self.config()?)?)
    }

    /// Makes the policy ready in the kernel while an agent of this process has the tasks.
    pub fn prepare(&self) -> Result<Ready<'_>> {
        let guard = Unload::new(self.beside)?;
        Ok(Ready { session: Session::prepare(&self.config()?)?, guard, plan: self })
    }

    fn config(&self) -> Result<Config> {
        let modules = crate::modules::in_directory(&self.modules, &self.policy)?;
        Ok(Config {
            params: self.params.clone(),
            saved: self.saved.clone(),
            scope: if self.attached { Scope::Attached } else { Scope::All },
            max_tasks: self.max_tasks,
            arena_bytes: self.arena_mib << 20,
            call_log_records: records_in(self.flight_kib),
            upgradable: self.upgradable,
            beside: self.beside,
            access: self.access,
            ..Config::new(&self.policy, modules)
        })
    }

    // In this order: where something fails here, the policy goes first, and then its modules can.
    fn held(&self, guard: Unload, session: Session) -> Result<Held> {
        let flight = match self.flight_kib {
            0 => None,
            _ => Some(Flight {
                call_log: RefCell::new(CallLog::open(
                    recorded(session.slot())?.as_ref().ok_or(LoadError::NothingRuns)?,
                )?),
                told: header(Some(session.slot()), "flight recorder")?,
                directory: self.flights.clone(),
            }),
        };
        Ok(Held { session, policy: self.policy.clone(), flight, _guard: guard })
    }
}

/// A policy that is made in the kernel and not called yet.
pub struct Ready<'a> {
    // In this order: the modules can go when the policy is gone.
    session: Prepared,
    guard: Unload,
    plan: &'a Plan,
}

impl Ready<'_> {
    /// Puts it in charge.
    pub fn start(self) -> Result<Held> {
        let Self { session, guard, plan } = self;
        plan.held(guard, session.start()?)
    }
}

/// How many records of a ring are that many KiB, in a power of two.
pub fn records_in(kib: u64) -> u64 {
    match kib {
        0 => 0,
        kib => (kib * 1024 / RECORD_BYTES).next_power_of_two(),
    }
}

/// Saves the newest calls of all policies that run, for what was just seen of them; where that cannot be done it is said, and stands in the way of
/// nothing. Returns the files.
pub fn save_flights(directory: &Path) -> Vec<PathBuf> {
    let policies = ekiden_loader::Status::read().ok().flatten().unwrap_or_default().policies;
    let mut files = Vec::new();
    for policy in policies.iter().filter(|policy| policy.alive) {
        let saved = save_flight_of(policy, directory);
        match saved {
            Ok(path) => {
                eprintln!(
                    "ekiden: the last calls of {} are in {1}; next: ekiden replay {1}",
                    policy.policy,
                    path.display()
                );
                files.push(path);
            }
            Err(error) => eprintln!("ekiden: the last calls of {} could not be saved: {error:#}", policy.policy),
        }
    }
    files
}

fn save_flight_of(policy: &PolicyStatus, directory: &Path) -> Result<PathBuf> {
    let mut call_log = CallLog::open(policy)?;
    let (header, instances) = header(Some(policy.slot), "flight recorder, when a CPU was wasted")?;
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (file, path) = flights::create(directory, &format!("{}-{at}.ekirec", policy.policy))?;
    dump(&mut call_log, &header, &instances, file, false)?;
    Ok(path)
}

/// A policy in the kernel, until this is dropped.
pub struct Held {
    // In this order: the modules can go when the session is over.
    session: Session,
    policy: String,
    flight: Option<Flight>,
    _guard: Unload,
}

/// The flight recorder: what was written down stays readable when the policy is gone.
pub struct Flight {
    /// Where the calls are read from.
    pub call_log: RefCell<CallLog>,
    /// What the file says of them at its beginning, and the instances of which there may be calls.
    pub told: (Header, Vec<NumberedInstance>),
    /// Where the file is put.
    pub directory: PathBuf,
}

impl Flight {
    /// Saves the newest calls, of what was told at first, or what is told by now. That it cannot be done is said, and does not stand in
    /// the way of anything.
    pub fn save(&self, fault: &LastFault, newest: Option<&(Header, Vec<NumberedInstance>)>) -> Option<PathBuf> {
        let Self { call_log, told, directory } = self;
        let (header, instances) = newest.unwrap_or(told);
        let saved =
            flights::create(directory, &format!("{}-{}.ekirec", fault.policy, fault.at)).and_then(|(file, path)| {
                dump(&mut call_log.borrow_mut(), header, instances, file, true)?;
                Ok(path)
            });
        match saved {
            Ok(path) => {
                eprintln!("ekiden: its last calls are in {0}; next: ekiden replay {0}", path.display());
                Some(path)
            }
            Err(error) => {
                eprintln!("ekiden: its last calls could not be saved to {}: {error:#}", directory.display());
                None
            }
        }
    }
}

impl Held {
    /// An error with the reason, which is also kept for `ekiden status`, if the kernel does not use the policy any more.
    pub fn check(&self) -> Result<()> {
        let Err(error) = self.session.check() else { return Ok(()) };
        if let LoadError::TakenOut(reason) | LoadError::TakenOutOfSeveral(reason) = &error {
            let mut fault = LastFault::now(&self.policy(), reason);
            // The newest calls are of the one that has taken over since.
            let newest = header(Some(self.session.slot()), "flight recorder").ok();
            fault.recording = self.flight.as_ref().and_then(|flight| flight.save(&fault, newest.as_ref()));
            if let Err(error) = fault.keep() {
                eprintln!("ekiden: why the policy ended could not be kept for `ekiden status`: {error:#}");
            }
        }
        Err(error.into())
    }

    /// What the policy saves for one of its name in an agent, if it saves anything.
    pub fn save(&self, max_tasks: u32) -> ekiden_loader::Result<Option<Vec<u8>>> {
        self.session.control().save(self.slot(), max_tasks)
    }

    /// Gives every task back to the kernel's own scheduler. The policy and its modules go when this is dropped.
    pub fn let_go(&mut self) {
        self.session.let_go();
    }

    /// Its place among the policies that run.
    pub fn slot(&self) -> u32 {
        self.session.slot()
    }

    /// The policy of now.
    pub fn policy(&self) -> String {
        // Another one may have taken over from the one that was started.
        let newest = recorded(self.session.slot()).ok().flatten();
        newest.map_or_else(|| self.policy.clone(), |newest| newest.policy)
    }

    /// The number by which `ekiden status` and others know it.
    pub fn number(&self) -> Result<u32> {
        Ok(recorded(self.slot())?.ok_or(LoadError::NothingRuns)?.instance)
    }

    /// Whether the kernel uses the policy.
    pub fn is_running(&self) -> bool {
        self.session.is_running()
    }
}

/// The status of the policy in a policy slot.
fn recorded(slot: u32) -> Result<Option<PolicyStatus>> {
    let status = ekiden_loader::Status::read()?.unwrap_or_default();
    Ok(status.policies.into_iter().find(|policy| policy.slot == slot))
}

/// Unloads our modules when it is dropped.
struct Unload;

impl Unload {
    /// What a killed session left loaded may be of another build: it goes first.
    fn new(beside: Beside) -> Result<Self> {
        if beside != Beside::Nobody && sysfs::scheduler().is_some() {
            return Ok(Self);
        }
        if let Err(error) = unload_all(Duration::from_secs(2)) {
            let names = loaded().join(", ");
            return Err(match sysfs::scheduler() {
                Some(name) => LoadError::Busy(name).into(),
                None => anyhow::Error::from(error).context(format!("modules are in use: {names}")),
            });
        }
        Ok(Self)
    }
}

impl Drop for Unload {
    fn drop(&mut self) {
        // An agent uses none.
        if sysfs::scheduler().is_some_and(|name| !name.starts_with("ekiden_agent")) {
            // Others go on: only what they do not use goes.
            loaded().iter().for_each(|name| drop(unload(name, Duration::ZERO)));
        } else if let Err(error) = unload_all(PATIENCE) {
            eprintln!("ekiden: {error}; `rmmod` them when no process uses them any more");
        }
    }
}

/// What has to be true of this machine before a policy can run; nothing is changed.
pub fn preflight(beside: Beside) -> Result<()> {
    needs_root()?;
    if !sysfs::supported() {
        return Err(LoadError::NoSchedExt.into());
    }
    match sysfs::scheduler() {
        Some(name) if name.starts_with("ekiden_agent") => return Err(LoadError::AgentRuns(name).into()),
        Some(name) if name.starts_with("ekiden") && beside != Beside::Nobody => return Ok(()),
        Some(name) if name.starts_with("ekiden") => return Err(LoadError::Busy(name).into()),
        Some(name) => return Err(LoadError::OtherScheduler(name).into()),
        None => {}
    }
    kernel_is_right()
}

/// Whether sched_ext works in this kernel as it should.
pub fn kernel_is_right() -> Result<()> {
    if env::var_os(JUDGED).is_some() {
        return Ok(());
    }
    let verdict = preflight_running()?;
    if verdict.passes() {
        return Ok(());
    }
    let message = format!("sched_ext does not work in this kernel: {verdict}; or use `ekiden vm run`");
    Err(Failure::new(Exit::BrokenKernel, message).into())
}

/// Why and when a policy was taken out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastFault {
    /// The name of the policy.
    pub policy: String,
    /// The message, with file and line.
    pub reason: String,
    /// Seconds since 1970.
    pub at: u64,
    /// The policy's last calls, for `ekiden replay`.
    #[serde(default)]
    pub recording: Option<PathBuf>,
}

impl LastFault {
    /// A policy was taken out just now.
    pub fn now(policy: &str, reason: &str) -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { policy: policy.to_owned(), reason: reason.to_owned(), at, recording: None }
    }

    /// How long ago that was; `None` if the clock was set back since.
    pub fn ago(&self) -> Option<Duration> {
        SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(self.at)).ok()
    }

    /// Keeps it for `ekiden status`.
    pub fn keep(&self) -> Result<()> {
        let path = Path::new(LAST_FAULT);
        fs::create_dir_all(path.parent().unwrap_or(path)).context("cannot create the directory for the last fault")?;
        fs::write(path, serde_json::to_vec(self)?).with_context(|| format!("cannot write {LAST_FAULT}"))
    }

    /// The last one since this machine was started, if there was any.
    pub fn read() -> Option<Self> {
        serde_json::from_slice(&fs::read(LAST_FAULT).ok()?).ok()
    }
}
