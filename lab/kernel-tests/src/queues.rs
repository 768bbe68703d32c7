//! Queues of hints as an ordinary user's program has them, and all that it may do wrong with them.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, AsRawFd},
    path::Path,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ekiden_loader::{HintCounts, Session, Status, Succession, load_beside, load_copy};
use ekiden_policies::{Change, Placed, Together};
use ekiden_user::{BytesQueue, HintQueue, NotSent, Policy, hints::layout::at};
use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{Pid, gettid},
};
use serde::Serialize;
use zerocopy::IntoBytes;

use crate::{
    guest_tests::{config, module_of},
    intruder::be_user,
    load::pause,
    processes::fork,
    storm::{measure_off_times, off_times},
    upgrades::{pipe, with_other_hints},
};

type Queue = HintQueue<Together, Placed>;

const USER: u32 = 1000;
const POLICY: Policy<'static> = Policy::Named("locality");
/// More than anything here takes.
const LONG: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct QueuesReport {
    /// A hint without a system call was answered, and how many milliseconds that took.
    answered_ms: u64,
    /// How many microseconds it took until a hint with a ring was answered.
    rung_us: u64,
    /// Counts of a flood: what was written, taken, how often there was no room, and what the queue counts of notices.
    flood: [u64; 4],
    /// Hints that are none, and how many of them the queue counts.
    refused: [u64; 2],
    /// Heads that cannot be, after each of which a hint was answered.
    nonsense: u32,
    /// Why a program with other types gets no queue.
    other_hints: String,
    other_notices: String,
    /// And one that has too many.
    too_many: String,
    opened: u32,
    /// Whether a child was refused to ring, what came of the memory that it has not, and whether its parent was answered.
    child: [i32; 3],
    /// Queues that a process had when it was killed, before and after that.
    left: [u64; 2],
    /// A queue whose memory was unmapped while its policy answered.
    unmapped: bool,
    /// What a program heard that waited while the policy went: how its queue stood.
    gone: String,
    /// After a version of the same types took over.
    upgraded: bool,
    anew: Anew,
    /// How many queues there were, what `status` says of them, and the process that it says has one that is open.
    opened_in_all: u64,
    counted: [u64; 4],
    owner: [u32; 2],
    contract_violations: u64,
    off_ns_max: BTreeMap<String, u64>,
    still_running: bool,
}

/// The state of a queue when a version with other hints took over.
#[derive(Default, Serialize)]
struct Anew {
    state: String,
    sent: String,
    rung: String,
    /// Whether who waited for a notice woke up for that.
    woken: bool,
    /// Why the old types get no queue, and whether the new ones were answered.
    old_types: String,
    answered: bool,
    /// Queues that are open now.
    open: u64,
}

fn hint(thread: u32, set: u32) -> Together {
    Together { change: Change::Join, thread, set }
}

fn me() -> u32 {
    gettid().as_raw() as u32
}

fn open() -> Result<Queue> {
    Ok(Queue::open(POLICY)?)
}

/// Waits for the answer to a hint.
fn answer(queue: &mut Queue) -> Result<Placed> {
    let start = Instant::now();
    while start.elapsed() < LONG {
        if let Some(placed) = queue.receive() {
            return Ok(placed);
        }
        queue.wait(Duration::from_millis(100))?;
    }
    bail!("there was no answer: {queue:?} {:?}", queue.counts())
}

fn open_queues() -> Result<u64> {
    let text = fs::read_to_string("/dev/ekiden")?;
    let status: serde_json::Value = serde_json::from_str(&text)?;
    Ok(status["policies"][0]["queues"]["open"].as_u64().unwrap_or(0))
}

/// Runs it as an ordinary user in a thread of its own, and returns the result.
fn as_user<T: Send>(does: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            be_user(USER)?;
            does()
        });
        user.join().ok().context("the user panicked")?
    })
}

fn flood(queue: &mut Queue) -> Result<[u64; 4]> {
    let (start, mut written) = (Instant::now(), 0_u64);
    while start.elapsed() < Duration::from_millis(500) {
        for number in 0..1_000 {
            written += u64::from(queue.send(&hint(100_000 + number, number % 7)).is_ok());
        }
        thread::yield_now();
    }
    queue.ring()?;
    pause(50);
    while queue.receive().is_some() {}
    let counts = queue.counts();
    Ok([written, counts.taken, counts.full, counts.lost])
}

/// Writes records that no program would write by `send`.
fn bad_values(queue: &mut Queue) -> Result<[u64; 2]> {
    let mut refused = 0;
    // The policy may have taken a hint before it is changed: then that one was good.
    for _ in 0..5 {
        let before = queue.counts();
        for number in 0..8_u32 {
            queue.send(&hint(1, 1)).ok();
            // The record that was just written: its first word says what is to change.
            let head = queue.words()[at::UP_HEAD].load(Relaxed);
            let record = 512 + (head - 1) as usize % 64 * 2;
            let other = u64::from(3 + number) | 1 << 32;
            queue.words()[record].store(other, Relaxed);
        }
        queue.ring()?;
        pause(20);
        while queue.receive().is_some() {}
        refused = queue.counts().refused - before.refused;
        if refused == 8 {
            break;
        }
    }
    Ok([8, refused])
}

fn nonsense() -> Result<u32> {
    let mut number = 0;
    for head in [1 << 40, u64::MAX, 65, 1 << 63] {
        let queue = open()?;
        queue.words()[at::UP_HEAD].store(head, Relaxed);
        queue.words()[at::DOWN_TAIL].store(!head, Relaxed);
        queue.words()[at::MAGIC].store(head, Relaxed);
        queue.ring()?;
        pause(5);
        ensure!(queue.words()[at::NONSENSE].load(Relaxed) == 1, "head {head:#x} was believed");
        // The policy answers others as before.
        let mut good = open()?;
        good.send(&hint(me(), 3))?;
        good.ring()?;
        answer(&mut good)?;
        number += 1;
    }
    Ok(number)
}

/// How a child ends that does this: its code, or the negative number of a signal.
fn end_of(work: impl FnOnce()) -> Result<i32> {
    let child = Pid::from_raw(fork(work)?);
    match waitpid(child, None)? {
        WaitStatus::Exited(_, code) => Ok(code),
        WaitStatus::Signaled(_, signal, _) => Ok(-(signal as i32)),
        other => bail!("{other:?}"),
    }
}

/// The child of a process with a queue: its own ring is refused, its parent's queue lives on, and its memory is not
/// there.
fn forks(queue: &mut Queue) -> Result<[i32; 3]> {
    let refused = end_of(|| {
        let told = queue.ring().is_err();
        // SAFETY: this ends the child, and runs nothing of what its parent has for its own end.
        unsafe { libc::_exit(if told { 7 } else { 8 }) };
    })?;
    // Asked of the kernel: to look there itself, the child would be killed, and the log would say so.
    let (_reader, writer) = pipe().context("no pipe")?;
    let missing = end_of(|| {
        // SAFETY: the kernel looks whether there is memory.
        let failed = unsafe { libc::write(writer.as_raw_fd(), queue.words().as_ptr().cast(), 8) } < 0;
        let error = io::Error::last_os_error().raw_os_error().filter(|_| failed);
        // SAFETY: this ends the child, and runs nothing of what its parent has for its own end.
        unsafe { libc::_exit(error.unwrap_or(0)) };
    })?;
    queue.send(&hint(me(), 1))?;
    queue.ring()?;
    Ok([refused, missing, i32::from(answer(queue).is_ok())])
}

/// A process that is killed with a full ring.
fn dies() -> Result<[u64; 2]> {
    // Queues of processes before it are gone a moment after those; the caller's own stays.
    let start = Instant::now();
    while open_queues()? > 1 && start.elapsed() < LONG {
        pause(5);
    }
    let before = open_queues()?;
    let end = end_of(|| {
        let start = Instant::now();
        while start.elapsed() < LONG {
            if let Ok(mut queue) = open() {
                while queue.send(&hint(1, 1)).is_ok() {}
                // SAFETY: it takes numbers, and ends the child that this runs in.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            pause(5);
        }
    })?;
    ensure!(end == -libc::SIGKILL, "it ended with {end}, before it had a queue");
    Ok([before, open_queues()?])
}

fn unmaps() -> Result<bool> {
    let mut queue = open()?;
    queue.send(&hint(me(), 2))?;
    let (at, bytes) = (queue.words().as_ptr(), queue.words().len() * 8);
    // SAFETY: another map in the place of the queue's own, which is dropped as that one would be.
    let map = unsafe {
        libc::mmap(
            at.cast_mut().cast(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    ensure!(map != libc::MAP_FAILED, "cannot unmap a queue");
    queue.ring()?;
    pause(5);
    // The kernel has taken the hint and answered: to it the descriptor is still open.
    let mut polled = libc::pollfd { fd: queue.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` is one entry, and outlives the call.
    Ok(unsafe { libc::poll(&raw mut polled, 1, 1000) } == 1 && polled.revents & libc::POLLIN != 0)
}

fn too_many() -> Result<(u32, String)> {
    let mut queues = Vec::new();
    loop {
        match Queue::with_records(POLICY, 1, 1) {
            Ok(queue) => queues.push(queue),
            Err(error) => return Ok((queues.len() as u32, error.to_string())),
        }
    }
}

fn refusal<T>(opened: Result<T, ekiden_user::Error>) -> String {
    opened.err().map_or_else(|| "opened".to_owned(), |error| error.to_string())
}

fn takes_over(modules: &Path, session: &Session, queue: &mut Queue) -> Result<bool> {
    let module = load_copy(&module_of(modules, "locality"))?;
    session.control().upgrade(&Succession { module: Some(&module), ..Succession::default() })?;
    queue.send(&hint(me(), 1))?;
    queue.ring()?;
    Ok(answer(queue).is_ok())
}

/// A version whose hints are of another type takes over: the program has to open the queue anew.
fn other_types_take_over(modules: &Path, session: &Session, mut queue: Queue) -> Result<Anew> {
    let module = load_beside(&with_other_hints("locality", &module_of(modules, "locality"))?)?;
    session.control().upgrade(&Succession { module: Some(&module), ..Succession::default() })?;
    let mut types = ekiden_user::types(POLICY)?;
    (types.up.records, types.down.records) = (1, 1);
    let say = |done: Result<(), NotSent>| done.err().map_or_else(String::new, |error| format!("{error:?}"));
    let mut anew = Anew {
        woken: queue.wait(LONG)?,
        state: format!("{:?}", queue.state()),
        sent: say(queue.send(&hint(me(), 1))),
        rung: say(queue.ring()),
        old_types: refusal(Queue::open(POLICY)),
        ..Anew::default()
    };
    let mut other = BytesQueue::open(POLICY, types)?;
    other.send(hint(me(), 1).as_bytes())?;
    other.ring()?;
    anew.answered = other.wait(LONG)? && other.receive(&mut [0; size_of::<Placed>()]);
    anew.open = open_queues()?;
    Ok(anew)
}

/// What `status` says of our own queue, and of all that there were.
fn counted(queue: &Queue) -> Result<(u64, [u64; 4], [u32; 2])> {
    let status = Status::read()?.unwrap_or_default();
    let queues = status.main().and_then(|policy| policy.queues.clone()).context("no queues in the status")?;
    let own = queues.list.iter().find(|open| open.queue == queue.number()).context("the queue is not listed")?;
    let HintCounts { hints, refused, full, lost, .. } = queues.counts;
    Ok((queues.opened, [hints, refused, full, lost], [own.owner, std::process::id()]))
}

/// Everything that an ordinary user may do with queues.
pub(crate) fn queues(modules: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "locality"))?;
    measure_off_times()?;
    let mut report = as_user(|| {
        let mut queue = open()?;
        let start = Instant::now();
        queue.send(&hint(me(), 1))?;
        // It sleeps, which is what has the policy look.
        let first = answer(&mut queue)?;
        let answered_ms = start.elapsed().as_millis() as u64;
        ensure!(first.thread == me() && first.cpu < 2, "{first:?}");
        let start = Instant::now();
        queue.send(&hint(me(), 1))?;
        queue.ring()?;
        ensure!(answer(&mut queue)? == first, "the set is where it was");
        let rung_us = start.elapsed().as_micros() as u64;
        let flood = flood(&mut queue)?;
        let refused = bad_values(&mut queue)?;
        let nonsense = nonsense()?;
        let child = forks(&mut queue)?;
        let left = dies()?;
        let unmapped = unmaps()?;
        let (opened, too_many) = too_many()?;
        Ok(QueuesReport {
            answered_ms,
            rung_us,
            flood,
            refused,
            nonsense,
            other_hints: refusal(HintQueue::<u64, Placed>::open(POLICY)),
            other_notices: refusal(HintQueue::<Together, u64>::open(POLICY)),
            too_many,
            opened,
            child,
            left,
            unmapped,
            gone: String::new(),
            upgraded: false,
            anew: Anew::default(),
            opened_in_all: 0,
            counted: [0; 4],
            owner: [0; 2],
            contract_violations: 0,
            off_ns_max: BTreeMap::new(),
            still_running: false,
        })
    })?;
    let mut queue = open()?;
    (report.opened_in_all, report.counted, report.owner) = counted(&queue)?;
    report.upgraded = takes_over(modules, &session, &mut queue)?;
    report.anew = other_types_take_over(modules, &session, open()?)?;
    // Back, as what waits below has the old types.
    session
        .control()
        .upgrade(&Succession { module: Some(&load_copy(&module_of(modules, "locality"))?), ..Succession::default() })?;
    let mut queue = open()?;
    let status = Status::read()?.unwrap_or_default();
    (report.contract_violations, report.off_ns_max) = (status.counts.contract_violations, off_times(&status));
    report.still_running = session.is_running();
    let waiting = thread::spawn(move || {
        let start = Instant::now();
        while queue.send(&hint(1, 1)).is_ok() && start.elapsed() < LONG {
            let _ = queue.wait(LONG);
            while queue.receive().is_some() {}
        }
        match (queue.send(&hint(1, 1)), queue.ring()) {
            (Err(NotSent::PolicyGone), Err(NotSent::PolicyGone)) => format!("{:?}", queue.state()),
            other => format!("{other:?}"),
        }
    });
    pause(20);
    session.stop();
    report.gone = waiting.join().ok().context("who waited panicked")?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
