//! One policy in the kernel, from loading to leaving.

use std::{
    ffi::{OsString, c_char},
    hint::black_box,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::PathBuf,
    ptr,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use ekiden::{Call, Calls};
use ekiden_host::abi::ABI_VERSION;
use libbpf_rs::{
    Link, OpenObject,
    btf::{Btf, types},
    skel::{OpenSkel, SkelBuilder},
};

use super::{
    links,
    skel::ekiden::{EkidenSkel, EkidenSkelBuilder, OpenEkidenSkel},
};
use crate::{
    config::{Beside, Config, Scope},
    control::{Control, Wanted},
    error::{LoadError, Result, needs_root},
    kernel_log, modules,
    status::{Status, is_alive},
    sysfs,
};

/// How long the kernel may take to say why it let go of a policy.
const EXIT_TAKES: Duration = Duration::from_secs(1);
const NO_REASON: &str = "no reason given";

/// Looks again and again until something is found or the time is over.
fn within<T>(time: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let found = look();
        if found.is_some() || start.elapsed() > time {
            return found;
        }
        thread::sleep(time / 100);
    }
}

/// The BPF program of one policy, accepted by the kernel. Getting there takes most of the time of a
/// start, so that a caller that starts the same policy again can keep it: see [`Session::stop`].
pub struct Program {
    skel: EkidenSkel<'static>,
    policy: String,
}

/// A policy that runs. Dropping it gives its tasks to the other policies that run, or, if there are none, every task back to the
/// kernel's own scheduler.
pub struct Session {
    // In this order: first the kernel lets go of the policy, then the policy ends.
    link: Option<Held>,
    _timer: Held,
    program: Option<Program>,
    control: Control,
    slot: u32,
}

/// What keeps the scheduler in the kernel: the last one that lets go of it ends it.
enum Held {
    Ours {
        _link: Link,
    },
    /// The link of the session which came first.
    Theirs {
        _fd: OwnedFd,
    },
}

impl Program {
    /// The name under which the kernel knows the scheduler.
    fn name(&self) -> String {
        scheduler_name(&self.policy)
    }

    /// Why the kernel let go of it the last time is not why it may do so the next.
    fn forget_end(&mut self) {
        if let Some(bss) = &mut self.skel.maps.bss_data {
            (bss.exit_reason, bss.exit_message) = ([0; 64], [0; 256]);
        }
    }
}

fn scheduler_name(policy: &str) -> String {
    format!("ekiden_{}", policy.replace('-', "_"))
}

/// Whether the scheduler in the kernel is of Ekiden.
fn runs_already() -> bool {
    sysfs::scheduler().is_some_and(|name| name.starts_with("ekiden_"))
}

impl Session {
    /// Puts a policy into the kernel. If that fails, the machine is as it was, but for modules that may stay loaded.
    pub fn start(config: &Config) -> Result<Self> {
        Self::start_with(config, &mut None)
    }

    /// Starts a session with the program of an earlier session of this policy in this scope. If the policy is taken out at
    /// once, the program is in `kept` again.
    pub fn start_with(config: &Config, kept: &mut Option<Program>) -> Result<Self> {
        if config.beside != Beside::Nobody && runs_already() {
            return Self::join(config);
        }
        before_loading()?;
        Self::prepare_with(config, kept)?.start_or_keep(kept)
    }

    /// Makes a policy ready, while an agent has the tasks: what can be refused is refused before that one lets go of them.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn prepare(config: &Config) -> Result<Prepared> {
        needs_root()?;
        Self::prepare_with(config, &mut None)
    }

    fn prepare_with(config: &Config, kept: &mut Option<Program>) -> Result<Prepared> {
        for module in &config.modules {
            modules::load(module)?;
        }
        let (control, slot) = make_ready(config, false)?;
        let program = match kept.take() {
            Some(mut program) if program.policy == config.policy => {
                program.forget_end();
                program
            }
            _ => {
                let calls = Calls(Status::read()?.unwrap_or_default().main().map_or(0, |policy| policy.calls));
                Program { skel: load_program(calls, config)?, policy: config.policy.clone() }
            }
        };
        Ok(Prepared { program, control, slot })
    }

    /// Loads the modules and makes a policy ready, but does not have the kernel call it. It is gone when the device is closed.
    pub fn ready_only(config: &Config) -> Result<Control> {
        before_loading()?;
        for module in &config.modules {
            modules::load(module)?;
        }
        Ok(make_ready(config, false)?.0)
    }

    /// Comes to the policies that run.
    fn join(config: &Config) -> Result<Self> {
        needs_root()?;
        // First, so that the loader that came first can exit meanwhile.
        let (link, timer) = links::of_scheduler()?;
        let (core, policy) = config.modules.split_first().ok_or_else(|| LoadError::NoModule(PathBuf::new()))?;
        modules::load(core)?;
        for module in policy {
            modules::load_copy(module)?;
        }
        let (control, slot) = make_ready(config, true)?;
        let (link, timer) = (Some(Held::Theirs { _fd: link }), Held::Theirs { _fd: timer });
        let session = Self { link, _timer: timer, program: None, control, slot };
        session.check()?;
        Ok(session)
    }

    /// The policy's device, to tell it something.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Its place among the policies that run.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether the kernel still uses the policy.
    pub fn is_running(&self) -> bool {
        let ours = self.program.as_ref().map(Program::name);
        let scheduler = sysfs::scheduler();
        let is_ours = ours.map_or_else(runs_already, |ours| scheduler == Some(ours));
        is_ours && is_alive(self.slot)
    }

    /// An error with the reason if the kernel does not use the policy any more.
    pub fn check(&self) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let status = Status::read()?.unwrap_or_default();
        if status.policies.iter().any(|policy| policy.alive) && runs_already() {
            return Err(LoadError::TakenOutOfSeveral(status.why(self.slot).unwrap_or_else(|| NO_REASON.into())));
        }
        // The newest reason of ours may be that of a policy which faulted long ago.
        let reason = status
            .own_reason(self.slot)
            .or_else(|| within(EXIT_TAKES, || self.exit_reason()))
            .or_else(|| status.why(self.slot));
        Err(LoadError::TakenOut(reason.unwrap_or_else(|| NO_REASON.into())))
    }

    /// Why the kernel let go of the policy, in its own words. It tells the program last of all, and its log a session without one.
    fn exit_reason(&self) -> Option<String> {
        let Some(program) = &self.program else { return kernel_log::exit_reason() };
        let bss = black_box(program.skel.maps.bss_data.as_ref()?);
        let text = |bytes: &[c_char]| -> String {
            bytes.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char).collect()
        };
        (bss.exit_reason[0] != 0)
            .then(|| format!("{} {}", text(&bss.exit_reason), text(&bss.exit_message)).trim().to_owned())
    }

    /// Gives every task back, and returns when the kernel has done so; with the program, if it is this session's.
    pub fn stop(mut self) -> Option<Program> {
        self.let_go();
        self.program
    }

    /// The same, but the policy is there until this is dropped.
    pub fn let_go(&mut self) {
        self.link.take();
    }
}

/// A policy that is made, with a program that the kernel has accepted and does not call yet.
pub struct Prepared {
    program: Program,
    control: Control,
    slot: u32,
}

impl Prepared {
    /// Puts it in charge.
    ///
    /// # Errors
    /// Another scheduler has the tasks, or the policy is taken out at once.
    pub fn start(self) -> Result<Session> {
        self.start_or_keep(&mut None)
    }

    fn start_or_keep(mut self, kept: &mut Option<Program>) -> Result<Session> {
        let skel = &mut self.program.skel;
        let timer = skel.progs.ekiden_on_timer.attach().map_err(|error| bpf_error("attach", &error))?;
        let link = skel.maps.ekiden_ops.attach_struct_ops().map_err(|error| bpf_error("attach", &error))?;
        let (link, timer) = (Held::Ours { _link: link }, Held::Ours { _link: timer });
        let Self { program, control, slot } = self;
        let session = Session { link: Some(link), _timer: timer, program: Some(program), control, slot };
        match session.check() {
            Ok(()) => Ok(session),
            Err(error) => {
                *kept = session.stop();
                Err(error)
            }
        }
    }
}

fn make_ready(config: &Config, joins: bool) -> Result<(Control, u32)> {
    let topology = ekiden_machine::read_sysfs("/sys".as_ref())
        .map_err(|error| LoadError::Other(format!("cannot read the topology: {error}")))?;
    let control = Control::open()?;
    let wanted = Wanted {
        policy: &config.policy,
        params: &config.params,
        saved: &config.saved,
        max_tasks: config.max_tasks,
        arena_bytes: config.arena_bytes,
        call_log_records: config.call_log_records,
        joins,
        is_default: config.beside == Beside::OthersAsDefault,
        access: config.access,
    };
    let slot = control.create(&wanted, &topology)?;
    Ok((control, slot))
}

/// What must be true before anything is touched.
pub(crate) fn before_loading() -> Result<()> {
    needs_root()?;
    if !sysfs::supported() {
        return Err(LoadError::NoSchedExt);
    }
    match sysfs::scheduler() {
        Some(name) if name.starts_with("ekiden") => Err(LoadError::Busy(name)),
        Some(name) => Err(LoadError::OtherScheduler(name)),
        None => Ok(()),
    }
}

fn load_program(calls: Calls, config: &Config) -> Result<EkidenSkel<'static>> {
    // The object lives as long as the program runs, which is as long as the process: it is not worth a self-reference.
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = EkidenSkelBuilder::default().open(object).map_err(|error| bpf_error("open", &error))?;
    choose_operations(&mut open, calls, config.upgradable);
    leave_out_what_the_kernel_lacks(&mut open)?;
    let name = scheduler_name(&config.policy);
    let ops = open.struct_ops.ekiden_ops_mut();
    for (place, byte) in ops.name.iter_mut().zip(name.bytes().chain([0])) {
        *place = byte as c_char;
    }
    if config.scope == Scope::Attached {
        ops.flags |= libbpf_flag::SWITCH_PARTIAL;
    }
    open.load().map_err(|error| bpf_error("load", &error))
}

mod libbpf_flag {
    /// SCX_OPS_SWITCH_PARTIAL: only tasks in class SCHED_EXT.
    pub(super) const SWITCH_PARTIAL: u64 = 1 << 3;
}

/// Leaves out `quiescent` for a policy that does not look at it: an operation that is not there costs nothing, and the engine
/// sees that a task has slept from what follows. The others are rare or cost next to nothing when no policy listens, and a policy
/// that takes over later may need them; if none can, they are left out too.
fn choose_operations(open: &mut OpenEkidenSkel<'_>, calls: Calls, upgradable: bool) {
    let ops = open.struct_ops.ekiden_ops_mut();
    if !calls.has(Call::TaskBlocked) {
        ops.quiescent = ptr::null_mut();
    }
    if upgradable {
        return;
    }
    if !calls.has(Call::TaskAffinityChanged) {
        ops.set_cpumask = ptr::null_mut();
    }
    if let Some(constants) = &mut open.maps.rodata_data {
        constants.is_fixed = true;
        constants.fixed_chooses_cpu = calls.has(Call::SelectTaskRq);
    }
}

/// Operations on control groups came one after the other, and not at all to kernels without control groups for sched_ext.
fn leave_out_what_the_kernel_lacks(open: &mut OpenEkidenSkel<'_>) -> Result<()> {
    let known = operations_of_the_kernel()?;
    let ops = open.struct_ops.ekiden_ops_mut();
    for (name, operation) in [
        ("cgroup_init", &mut ops.cgroup_init),
        ("cgroup_exit", &mut ops.cgroup_exit),
        ("cgroup_move", &mut ops.cgroup_move),
        ("cgroup_set_weight", &mut ops.cgroup_set_weight),
        ("cgroup_set_bandwidth", &mut ops.cgroup_set_bandwidth),
        ("cgroup_set_idle", &mut ops.cgroup_set_idle),
    ] {
        if !known.iter().any(|known| known == name) {
            *operation = ptr::null_mut();
        }
    }
    Ok(())
}

/// The names of what sched_ext can call in this kernel, read once: the kernel's type information is megabytes.
///
/// # Errors
/// The kernel's type information cannot be read.
pub fn operations_of_the_kernel() -> Result<&'static [OsString]> {
    static KNOWN: OnceLock<Vec<OsString>> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known);
    }
    let btf = Btf::from_vmlinux().map_err(|error| bpf_error("find the operations of sched_ext for", &error))?;
    let ops = btf.type_by_name::<types::Struct<'_>>("sched_ext_ops");
    let names = ops.iter().flat_map(|ops| ops.iter()).filter_map(|member| member.name.map(OsString::from));
    Ok(KNOWN.get_or_init(|| names.collect()))
}

pub(crate) fn bpf_error(step: &str, error: &libbpf_rs::Error) -> LoadError {
    LoadError::Bpf { message: format!("cannot {step} it for interface {ABI_VERSION}: {error:#}"), log: String::new() }
}
