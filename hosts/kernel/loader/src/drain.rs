//! Keeps the calls of the policy that runs in a file: what the flight recorder has, or everything from now on.

use std::{
    fs::File,
    io::{BufWriter, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ekiden_recording::{Header, Host, Instance, RecordingError, RecordingWriter};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    control::{PolicyStatus, Status},
    error::{LoadError, Result},
    tape::{Tape, now_ns},
};

/// How often the reader looks how full the rings are, and how long it lets records wait at most.
const LOOK: Duration = Duration::from_millis(5);
const WAIT_MAX: Duration = Duration::from_millis(500);

/// A ring that is as full as this is read at once.
const FULL: f64 = 0.125;

/// How old a call is at least when it is certain that its CPU has written it down: the two are a few instructions apart, but
/// whatever the processor belongs to may come between.
const SETTLED_NS: u64 = 20_000_000;

/// What was kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Records that are in the file.
    pub records: u64,
    /// Records that were overwritten before they were read.
    pub lost: u64,
    /// The length of the file, in bytes.
    pub bytes: u64,
    /// CPU time that the reader has used, in nanoseconds.
    pub reader_ns: u64,
}

/// Everything that the policy's CPUs write down goes to a file, until this is stopped.
pub struct Drain {
    thread: JoinHandle<Result<Kept>>,
    is_over: Arc<AtomicBool>,
}

impl Drain {
    /// Records the policy in a seat, or the default one. Begins with the oldest calls that there are, or, if
    /// `from_now`, with the next ones. `workload` is what runs, for the file's header.
    ///
    /// # Errors
    /// Without permission, if no policy runs or it has no flight recorder, or if the file cannot be written.
    pub fn start(file: File, seat: Option<u32>, from_now: bool, workload: &str) -> Result<Self> {
        let policy = recorded(&Status::read()?.unwrap_or_default(), seat)?.clone();
        let mut tape = Tape::open(&policy)?;
        if from_now {
            tape.skip();
        }
        let (header, number) = header(seat, workload)?;
        let (seat, mut known) = (policy.seat, number);
        Self::begin(tape, &header, file, move |writer| tell_instances(writer, seat, &mut known))
    }

    /// Records what is written to a tape, of one instance.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn of(tape: Tape, header: &Header, file: File) -> Result<Self> {
        Self::begin(tape, header, file, |_| Ok(()))
    }

    fn begin(
        mut tape: Tape,
        header: &Header,
        file: File,
        mut tell: impl FnMut(&mut RecordingWriter<BufWriter<File>>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let mut writer = RecordingWriter::new(BufWriter::new(file), header).map_err(cannot)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let drain = move || {
            stay_apart();
            let mut last = Instant::now();
            loop {
                let ends = ends.load(Relaxed);
                if ends {
                    // What has happened up to here is certain only after a while.
                    thread::sleep(Duration::from_nanos(SETTLED_NS));
                }
                if ends || tape.fullest() > FULL || last.elapsed() > WAIT_MAX {
                    tell(&mut writer)?;
                    pass(&mut tape, &mut writer, now_ns().saturating_sub(SETTLED_NS))?;
                    last = Instant::now();
                }
                if ends {
                    return finish(writer, &tape);
                }
                thread::sleep(LOOK);
            }
        };
        let thread = thread::Builder::new().name("ekiden-record".into()).spawn(drain);
        let thread =
            thread.map_err(|error| LoadError::Other(format!("cannot start the reader of the recording: {error}")))?;
        Ok(Self { thread, is_over })
    }

    /// Whether it has ended by itself, because the file cannot be written; [`stop`](Self::stop) says why.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the recording with what there is up to now.
    ///
    /// # Errors
    /// When the file could not be written: it is good up to there.
    pub fn stop(self) -> Result<Kept> {
        self.is_over.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(LoadError::Other("the reader of the recording has panicked".into())))
    }
}

/// Writes down what the flight recorder has. `is_over` says that the policy is asked no more.
///
/// # Errors
/// When the file cannot be written.
pub fn dump(tape: &mut Tape, header: &Header, file: File, is_over: bool) -> Result<Kept> {
    let mut writer = RecordingWriter::new(BufWriter::new(file), header).map_err(cannot)?;
    let until_ns = now_ns();
    if !is_over {
        thread::sleep(Duration::from_nanos(SETTLED_NS));
    }
    pass(tape, &mut writer, until_ns)?;
    finish(writer, tape)
}

/// The policy in a seat, or the default one.
pub(crate) fn recorded(status: &Status, seat: Option<u32>) -> Result<&PolicyStatus> {
    match seat {
        Some(seat) => status.policies.iter().find(|policy| policy.seat == seat).ok_or(LoadError::NothingRuns),
        None => status.main().ok_or(LoadError::NothingRuns),
    }
}

/// The header of a recording of the policy in a seat, or of the default one, and the number of its instance.
///
/// # Errors
/// If no policy runs, or the topology cannot be read.
pub fn header(seat: Option<u32>, workload: &str) -> Result<(Header, u32)> {
    let status = Status::read()?.unwrap_or_default();
    let policy = recorded(&status, seat)?;
    let instance = Instance { policy: policy.policy.clone(), params: policy.params.clone() };
    let header = header_of(Host::Kernel, instance, status.capacity as u32, workload)?;
    Ok((header, policy.instance))
}

/// The header of a recording of this machine that begins now.
///
/// # Errors
/// If the topology cannot be read.
pub fn header_of(host: Host, instance: Instance, max_tasks: u32, workload: &str) -> Result<Header> {
    let topology = ekiden_machine::read_sysfs("/sys".as_ref())
        .map_err(|error| LoadError::Other(format!("cannot read the topology: {error}")))?;
    let kernel = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    Ok(Header {
        host,
        instance,
        max_tasks,
        topology: topology.to_words(),
        workload: workload.to_owned(),
        kernel: kernel.unwrap_or_default(),
        start_ns: now_ns(),
        writer: format!("ekiden {}", env!("CARGO_PKG_VERSION")),
    })
}

/// Real-time tasks are not the policy's, so that this thread does not watch itself, and comes in time; the last CPU is the one
/// that is least likely to be somebody else's. It goes on as it is if either is not allowed.
fn stay_apart() {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are good for the call; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    let last = thread::available_parallelism().map_or(0, |cpus| cpus.get() - 1);
    let mut cpus = CpuSet::new();
    if cpus.set(last).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &cpus);
    }
}

/// Says what the instance is that has taken over since the last time, if one has. Without that its calls could not be replayed, so a status
/// that cannot be read ends the recording.
fn tell_instances(writer: &mut RecordingWriter<impl Write>, seat: u32, known: &mut u32) -> Result<()> {
    let policies = Status::read()?.unwrap_or_default().policies;
    // The policy may be gone, and what it was asked last is still to come.
    let Some(policy) = policies.into_iter().find(|policy| policy.seat == seat) else { return Ok(()) };
    if policy.instance != *known {
        let instance = Instance { policy: policy.policy, params: policy.params };
        writer.instance(policy.instance.into(), &instance).map_err(cannot)?;
        *known = policy.instance;
    }
    Ok(())
}

/// Whatever there is by now, which is everything up to `until_ns`.
fn pass(tape: &mut Tape, writer: &mut RecordingWriter<impl Write>, until_ns: u64) -> Result<()> {
    tape.drain(|cpu, first, records| writer.block(cpu, first, records)).map_err(cannot)?;
    writer.pass(until_ns).map_err(cannot)
}

fn finish(writer: RecordingWriter<impl Write>, tape: &Tape) -> Result<Kept> {
    let (records, _) = writer.counts();
    let bytes = writer.len();
    writer.finish().map_err(cannot)?;
    let used = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    let reader_ns = used.map_or(0, |used| Duration::from(used).as_nanos() as u64);
    Ok(Kept { records, lost: tape.lost(), bytes, reader_ns })
}

fn cannot(error: RecordingError) -> LoadError {
    LoadError::Other(error.to_string())
}
