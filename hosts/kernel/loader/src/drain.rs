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

use ekiden_recording::{FirstCalls, FirstMark, Header, Host, Instance, Record, RecordingError, RecordingWriter};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    call_log::{CallLog, now_ns},
    error::{LoadError, Result},
    status::{NumberedInstance, PARAMS_MOST, PolicyStatus, Status},
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
        let slot = policy.slot;
        let mut call_log = CallLog::open(&policy)?;
        let mut known = 0;
        let header = loop {
            let policy = policy_in(slot)?;
            let header = header(Some(slot), workload)?.0;
            if from_now {
                call_log.skip();
            }
            // An upgrade whose mark was skipped would go unnoticed.
            if !from_now || policy_in(slot)?.instance == policy.instance {
                break header;
            }
        };
        Self::begin(call_log, &header, file, move || {
            // The policy may be gone, and what it was asked last is still to come. Without what it is its calls could not be replayed, so a status
            // that cannot be read ends the recording.
            let policies = Status::read()?.unwrap_or_default().policies;
            let policy = policies.iter().find(|policy| policy.slot == slot);
            Ok(policy.map(|policy| policy.newer_than(&mut known)).unwrap_or_default())
        })
    }

    /// Records what is written to a call log. `instances` says of each instance once what it is, the first ones among them, in their order.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn of(
        call_log: CallLog,
        header: &Header,
        file: File,
        instances: impl FnMut() -> Result<Vec<NumberedInstance>> + Send + 'static,
    ) -> Result<Self> {
        Self::begin(call_log, header, file, instances)
    }

    fn begin(
        mut call_log: CallLog,
        header: &Header,
        file: File,
        mut instances: impl FnMut() -> Result<Vec<NumberedInstance>> + Send + 'static,
    ) -> Result<Self> {
        let of_header = header.instance.clone();
        let writer = RecordingWriter::new(BufWriter::new(file), header).map_err(cannot)?;
        let (pieces, to_write) = sync_channel(PIECES_MAX);
        let writer = thread_named("ekiden-write", move || write(writer, &to_write))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let drain = move || {
            let read = read(&mut call_log, &of_header, &pieces, &ends, &mut instances);
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

/// Writes down what the flight recorder has, of these instances, whose newest is that of the header. `is_over` says that the policy is asked no more.
///
/// # Errors
/// When the file cannot be written.
pub fn dump(
    call_log: &mut CallLog,
    header: &Header,
    instances: &[NumberedInstance],
    file: File,
    is_over: bool,
) -> Result<Kept> {
    let mut writer = RecordingWriter::new(BufWriter::new(file), header).map_err(cannot)?;
    let until_ns = now_ns();
    if !is_over {
        thread::sleep(Duration::from_nanos(SETTLED_NS));
    }
    let mut first = FirstMark::default();
    let drained = call_log.drain(|cpu, number, records| {
        first.look(records);
        writer.block(cpu, number, records)
    });
    drained.map_err(cannot)?;
    writer.before_marks(before_marks(first, instances, &header.instance).as_ref()).map_err(cannot)?;
    for instance in instances {
        writer.instance(instance.number.into(), &instance.instance()).map_err(cannot)?;
    }
    writer.pass(until_ns).map_err(cannot)?;
    Ok(Kept { lost: call_log.lost(), ..finish(writer)? })
}

/// Of which instance the calls before the first mark are, if that is known.
fn before_marks(first: FirstMark, known: &[NumberedInstance], newest: &Instance) -> Option<Instance> {
    match first.calls_before(known.iter().map(|known| known.number.into())) {
        FirstCalls::Newest => Some(newest).filter(|newest| newest.params.len() < PARAMS_MOST).cloned(),
        FirstCalls::Of(number) => {
            let known = known.iter().find(|known| u64::from(known.number) == number && !known.name.is_empty());
            known.map(NumberedInstance::instance)
        }
        FirstCalls::Unknown => None,
    }
}

/// The policy in a policy slot, or the default one.
pub(crate) fn recorded(status: &Status, slot: Option<u32>) -> Result<&PolicyStatus> {
    match slot {
        Some(slot) => status.policies.iter().find(|policy| policy.slot == slot).ok_or(LoadError::NothingRuns),
        None => status.main().ok_or(LoadError::NothingRuns),
    }
}

fn policy_in(slot: u32) -> Result<PolicyStatus> {
    recorded(&Status::read()?.unwrap_or_default(), Some(slot)).cloned()
}

/// The header of a recording of the policy in a policy slot, or of the default one, and the instances of which there may be calls.
///
/// # Errors
/// If no policy runs, or the topology cannot be read.
pub fn header(slot: Option<u32>, workload: &str) -> Result<(Header, Vec<NumberedInstance>)> {
    let status = Status::read()?.unwrap_or_default();
    let policy = recorded(&status, slot)?;
    let header = header_of(Host::Kernel, policy.of_now(), status.capacity as u32, workload)?;
    Ok((header, policy.all_instances()))
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

/// A piece of the recording for the thread that writes the file.
enum Piece {
    /// Records of a CPU, with the number of the first one.
    Records(u32, u64, Vec<Record>),
    Instance(u32, Instance),
    /// The instance to which the calls before the first mark belong, if it is known.
    BeforeMarks(Option<Instance>),
    /// Everything is there that was before this time.
    Pass(u64),
}

/// The thread that writes has ended: the reader ends too, and `stop` returns the error of that thread.
struct Ended;

/// Reads the rings until `ends` is set, or until the thread that writes has ended.
fn read(
    call_log: &mut CallLog,
    of_header: &Instance,
    pieces: &SyncSender<Piece>,
    ends: &AtomicBool,
    instances: &mut impl FnMut() -> Result<Vec<NumberedInstance>>,
) -> Result<()> {
    stay_apart();
    let hand_over = |piece| pieces.send(piece).map_err(|_| Ended);
    let mut last = Instant::now();
    let mut first = Some(FirstMark::default());
    loop {
        let ends = ends.load(Relaxed);
        if ends {
            // What has happened up to here is certain only after a while.
            thread::sleep(Duration::from_nanos(SETTLED_NS));
        }
        if ends || call_log.fullest() > FULL || last.elapsed() > WAIT_MAX {
            let until_ns = now_ns().saturating_sub(SETTLED_NS);
            let handed_over = call_log.drain(|cpu, number, records| {
                if let Some(first) = &mut first {
                    first.look(records);
                }
                let mut firsts = (number..).step_by(PIECE);
                records
                    .chunks(PIECE)
                    .zip(&mut firsts)
                    .try_for_each(|(records, number)| hand_over(Piece::Records(cpu, number, records.to_vec())))
            });
            // After draining, so that every mark in this pass has its instance.
            let new = instances()?;
            let before = first.take().map(|first| Piece::BeforeMarks(before_marks(first, &new, of_header)));
            let new = new.iter().map(|new| Piece::Instance(new.number, new.instance()));
            let handed_over = handed_over.and_then(|()| before.into_iter().chain(new).try_for_each(hand_over));
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
            Piece::BeforeMarks(instance) => writer.before_marks(instance.as_ref()),
            Piece::Pass(until_ns) => writer.pass(until_ns),
        }
        .map_err(cannot)?;
    }
    finish(writer)
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
