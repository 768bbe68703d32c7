//! Keeps the calls of the policy that runs in a file: what the flight recorder has, or everything from now on. One thread reads, in
//! time, before anything is overwritten; another one compresses and writes, and may have to wait for a disk.

use std::{
    fs::File,
    io::{BufWriter, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ekiden_recording::{Header, Host, Instance, Record, RecordingError, RecordingWriter};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    call_log::{CallLog, now_ns},
    error::{LoadError, Result},
    status::{PolicyStatus, Status},
};

/// How often the reader looks how full the rings are, and how long it lets records wait at most.
const LOOK: Duration = Duration::from_millis(5);
const WAIT_MAX: Duration = Duration::from_millis(500);

/// A ring that is as full as this is read at once.
const FULL: f64 = 0.125;

/// How old a call is at least when it is certain that its CPU has written it down: the two are a few instructions apart, but
/// whatever the processor belongs to may come between.
const SETTLED_NS: u64 = 20_000_000;

/// Most records that one thread sends to the other at a time, 256 KiB of them, and how often it may before it waits.
const PIECE: usize = 1 << 12;
const PIECES_MAX: usize = 128;

/// Counts of what was kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Records that are in the file.
    pub records: u64,
    /// Records that were overwritten before they were read.
    pub lost: u64,
    /// The length of the file, in bytes.
    pub bytes: u64,
    /// CPU time that was used to read and to write them, in nanoseconds.
    pub reader_ns: u64,
}

/// Everything that the policy's CPUs write down goes to a file, until this is stopped.
pub struct Drain {
    thread: JoinHandle<Result<Kept>>,
    is_over: Arc<AtomicBool>,
}

impl Drain {
    /// Records the policy in a policy slot, or the default one. Begins with the oldest calls that there are, or, if
    /// `from_now`, with the next ones. `workload` is what runs, for the file's header.
    ///
    /// # Errors
    /// Without permission, if no policy runs or it has no flight recorder, or if the file cannot be written.
    pub fn start(file: File, slot: Option<u32>, from_now: bool, workload: &str) -> Result<Self> {
        let policy = recorded(&Status::read()?.unwrap_or_default(), slot)?.clone();
        let mut call_log = CallLog::open(&policy)?;
        if from_now {
            call_log.skip();
        }
        let (header, number) = header(slot, workload)?;
        let (slot, mut known) = (policy.slot, number);
        Self::begin(call_log, &header, file, move || new_instance(slot, &mut known))
    }

    /// Records what is written to a call log. `takes_over` says of each instance that has taken over, with its number, once.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn of(
        call_log: CallLog,
        header: &Header,
        file: File,
        takes_over: impl FnMut() -> Result<Option<(u32, Instance)>> + Send + 'static,
    ) -> Result<Self> {
        Self::begin(call_log, header, file, takes_over)
    }

    fn begin(
        mut call_log: CallLog,
        header: &Header,
        file: File,
        mut takes_over: impl FnMut() -> Result<Option<(u32, Instance)>> + Send + 'static,
    ) -> Result<Self> {
        let writer = RecordingWriter::new(BufWriter::new(file), header).map_err(cannot)?;
        let (pieces, to_write) = sync_channel(PIECES_MAX);
        let writer = thread_named("ekiden-write", move || write(writer, &to_write))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let drain = move || {
            let read = read(&mut call_log, &pieces, &ends, &mut takes_over);
            drop(pieces);
            // Where it has ended by itself, it knows why.
            let written = writer.join().unwrap_or_else(|_| Err(LoadError::Other("what writes has panicked".into())))?;
            read?;
            Ok(Kept { lost: call_log.lost(), reader_ns: written.reader_ns + thread_ns(), ..written })
        };
        Ok(Self { thread: thread_named("ekiden-record", drain)?, is_over })
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
pub fn dump(call_log: &mut CallLog, header: &Header, file: File, is_over: bool) -> Result<Kept> {
    let mut writer = RecordingWriter::new(BufWriter::new(file), header).map_err(cannot)?;
    let until_ns = now_ns();
    if !is_over {
        thread::sleep(Duration::from_nanos(SETTLED_NS));
    }
    pass(call_log, &mut writer, until_ns)?;
    Ok(Kept { lost: call_log.lost(), ..finish(writer)? })
}

/// The policy in a policy slot, or the default one.
pub(crate) fn recorded(status: &Status, slot: Option<u32>) -> Result<&PolicyStatus> {
    match slot {
        Some(slot) => status.policies.iter().find(|policy| policy.slot == slot).ok_or(LoadError::NothingRuns),
        None => status.main().ok_or(LoadError::NothingRuns),
    }
}

/// The header of a recording of the policy in a policy slot, or of the default one, and the number of its instance.
///
/// # Errors
/// If no policy runs, or the topology cannot be read.
pub fn header(slot: Option<u32>, workload: &str) -> Result<(Header, u32)> {
    let status = Status::read()?.unwrap_or_default();
    let policy = recorded(&status, slot)?;
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
/// that other programs are least likely to use. If either is not allowed, the thread continues without.
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

/// The instance that has taken over since the last time, if one has. Without that its calls could not be replayed, so a status that
/// cannot be read ends the recording.
fn new_instance(slot: u32, known: &mut u32) -> Result<Option<(u32, Instance)>> {
    let policies = Status::read()?.unwrap_or_default().policies;
    // The policy may be gone, and what it was asked last is still to come.
    let policy = policies.into_iter().find(|policy| policy.slot == slot && policy.instance != *known);
    Ok(policy.map(|policy| {
        *known = policy.instance;
        (policy.instance, Instance { policy: policy.policy, params: policy.params })
    }))
}

/// A piece of the recording for the thread that writes the file.
enum Piece {
    /// Records of a CPU, with the number of the first one.
    Records(u32, u64, Vec<Record>),
    Instance(u32, Instance),
    /// Everything is there that was before this time.
    Pass(u64),
}

/// The thread that writes has ended: the reader ends too, and `stop` returns the error of that thread.
struct Ended;

/// Reads the rings until `ends` is set, or until the thread that writes has ended.
fn read(
    call_log: &mut CallLog,
    pieces: &SyncSender<Piece>,
    ends: &AtomicBool,
    takes_over: &mut impl FnMut() -> Result<Option<(u32, Instance)>>,
) -> Result<()> {
    stay_apart();
    let hand_over = |piece| pieces.send(piece).map_err(|_| Ended);
    let mut last = Instant::now();
    loop {
        let ends = ends.load(Relaxed);
        if ends {
            // What has happened up to here is certain only after a while.
            thread::sleep(Duration::from_nanos(SETTLED_NS));
        }
        if ends || call_log.fullest() > FULL || last.elapsed() > WAIT_MAX {
            let until_ns = now_ns().saturating_sub(SETTLED_NS);
            let mut handed_over = Ok(());
            while let (Ok(()), Some((number, instance))) = (&handed_over, takes_over()?) {
                handed_over = hand_over(Piece::Instance(number, instance));
            }
            let handed_over = handed_over.and_then(|()| {
                call_log.drain(|cpu, first, records| {
                    let mut firsts = (first..).step_by(PIECE);
                    records
                        .chunks(PIECE)
                        .zip(&mut firsts)
                        .try_for_each(|(records, first)| hand_over(Piece::Records(cpu, first, records.to_vec())))
                })
            });
            if handed_over.and_then(|()| hand_over(Piece::Pass(until_ns))).is_err() {
                return Ok(());
            }
            last = Instant::now();
        }
        if ends {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
}

/// Writes what comes, until nothing can come any more.
fn write(mut writer: RecordingWriter<BufWriter<File>>, pieces: &Receiver<Piece>) -> Result<Kept> {
    for piece in pieces {
        match piece {
            Piece::Records(cpu, first, records) => writer.block(cpu, first, &records),
            Piece::Instance(number, instance) => writer.instance(number.into(), &instance),
            Piece::Pass(until_ns) => writer.pass(until_ns),
        }
        .map_err(cannot)?;
    }
    finish(writer)
}

/// Whatever there is by now, which is everything up to `until_ns`.
fn pass(call_log: &mut CallLog, writer: &mut RecordingWriter<impl Write>, until_ns: u64) -> Result<()> {
    call_log.drain(|cpu, first, records| writer.block(cpu, first, records)).map_err(cannot)?;
    writer.pass(until_ns).map_err(cannot)
}

/// A reader of the recording finds out which records are lost.
fn finish(writer: RecordingWriter<impl Write>) -> Result<Kept> {
    let (records, _) = writer.counts();
    let bytes = writer.len();
    writer.finish().map_err(cannot)?;
    Ok(Kept { records, lost: 0, bytes, reader_ns: thread_ns() })
}

/// CPU time of this thread.
fn thread_ns() -> u64 {
    let used = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    used.map_or(0, |used| Duration::from(used).as_nanos() as u64)
}

fn thread_named<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let thread = thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|error| LoadError::Other(format!("cannot start the thread {name}: {error}")))
}

fn cannot(error: RecordingError) -> LoadError {
    LoadError::Other(error.to_string())
}
