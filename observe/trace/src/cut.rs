//! Cuts a piece out of a trace that is a trace by itself: less time, fewer CPUs, fewer tasks.
//!
//! Times begin anew, and [`Header::begins_ns`] says where the piece was. What stands when it begins is recorded at its
//! beginning: tasks with names, nice values, affinity, groups, and where they are; limits, locks that are held, CPUs
//! that are offline. A task that waits then seems to have begun to.
//!
//! Records that are left out must not make the rest look wrong. CPUs that are left out are offline in the piece, and a task that
//! goes there blocks. On a CPU that runs a task which is left out, a stand-in runs, called [`OTHERS`]. So checks find
//! nothing in the piece that they would not find in the whole, except that shares of CPU time are those of the stand-ins.

use std::{
    collections::{BTreeSet, HashSet},
    io::{self, Read, Write},
    mem,
};

use ekiden::CpuMask;
use ekiden_abi::NOTE_NAME_WORDS;

use crate::{At, Header, Machine, Reader, Record, TraceError, What, names};

/// The name of the tasks that stand for those that are left out, one a CPU.
pub const OTHERS: &str = "others";

/// The PID of the first of them; Linux has none so high.
const OTHERS_PID: u32 = 0x7fff_0000;

/// Most pieces of a set of CPUs: more is a damaged trace.
const PIECES_MAX: usize = 1_024;

/// What to keep.
#[derive(Clone, Debug)]
pub struct Cut {
    /// When it begins, in nanoseconds.
    pub from_ns: u64,
    /// Until right before this one.
    pub until_ns: u64,
    /// Only these CPUs.
    pub cpus: Option<CpuMask>,
    /// Only these tasks, and those of these names.
    pub pids: BTreeSet<u32>,
    /// Only tasks that have one of these names, from when on they have it, and those of these PIDs. A `*` at the end
    /// stands for anything.
    pub names: Vec<String>,
}

impl Default for Cut {
    /// All of it.
    fn default() -> Self {
        Self { from_ns: 0, until_ns: u64::MAX, cpus: None, pids: BTreeSet::new(), names: Vec::new() }
    }
}

/// Why there is no piece.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// The trace is none.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It ends before.
    #[error("the trace ends at {last_ns} ns, before the piece begins: cut earlier")]
    Beyond {
        /// Its last moment.
        last_ns: u64,
    },
    /// The piece cannot be written.
    #[error("cannot write the piece: {0}")]
    Write(#[source] io::Error),
}

impl Cut {
    /// Cuts, and writes the piece in small parts: put a [`BufWriter`](io::BufWriter) around a file. Reads no further than
    /// the piece goes. Takes memory for the tasks that live, whatever the length of the trace.
    ///
    /// # Errors
    /// When the trace is damaged before the piece ends, or ends before it begins, and when nothing more can be written.
    pub fn run<R: Read>(&self, trace: Reader<R>, out: impl Write) -> Result<(), CutError> {
        let header = trace.header().clone();
        let mut knife = Knife::new(self, &header, out);
        let (mut last_ns, mut has_begun) = (0, false);
        for record in trace {
            let record = record?;
            last_ns = record.time_ns;
            if !has_begun && last_ns >= self.from_ns {
                has_begun = true;
                knife.begin(&header)?;
            }
            if last_ns >= self.until_ns {
                break;
            }
            if has_begun {
                knife.record(&record)?;
            }
            knife.machine.apply(&record);
        }
        if has_begun { knife.out.flush().map_err(CutError::Write) } else { Err(CutError::Beyond { last_ns }) }
    }

    fn has_all_tasks(&self) -> bool {
        self.pids.is_empty() && self.names.is_empty()
    }

    fn has_cpu(&self, cpu: u32) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(cpu))
    }

    fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|wanted| match wanted.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == wanted,
        })
    }
}

/// A cut under way.
struct Knife<'a, W> {
    cut: &'a Cut,
    out: W,
    /// The whole machine, right before the record.
    machine: Machine,
    /// Tasks that are kept because of their names.
    named: HashSet<u32>,
    /// The task whose name is being told.
    naming: Option<u32>,
    /// By CPU, whether the one that stands for others runs.
    others: Vec<bool>,
    /// A set of CPUs that the next record may be about.
    considered: Vec<Record>,
    /// The name of a note that is to follow.
    note_name: Vec<Record>,
}

impl<'a, W: Write> Knife<'a, W> {
    fn new(cut: &'a Cut, header: &Header, out: W) -> Self {
        Self {
            cut,
            out,
            machine: Machine::new(header),
            named: HashSet::new(),
            naming: None,
            others: vec![false; header.cpus.len()],
            considered: Vec::new(),
            note_name: Vec::new(),
        }
    }

    fn put(&mut self, record: &Record) -> Result<(), CutError> {
        let time_ns = record.time_ns.saturating_sub(self.cut.from_ns);
        self.out.write_all(&Record { time_ns, ..*record }.to_bytes()).map_err(CutError::Write)
    }

    fn put_all(&mut self, records: &[Record]) -> Result<(), CutError> {
        records.iter().try_for_each(|record| self.put(record))
    }

    /// Whether a task is kept.
    fn has(&self, pid: u32) -> bool {
        self.cut.has_all_tasks() || self.cut.pids.contains(&pid) || self.named.contains(&pid)
    }

    /// Writes what stands when the piece begins.
    fn begin(&mut self, header: &Header) -> Result<(), CutError> {
        let now_ns = self.cut.from_ns;
        let mut header = Header { begins_ns: header.begins_ns.saturating_add(now_ns), ..header.clone() };
        for (number, cpu) in (0..).zip(&mut header.cpus) {
            cpu.online = self.machine.cpus[number as usize].online && self.cut.has_cpu(number);
        }
        self.out.write_all(&header.to_bytes()).map_err(CutError::Write)?;
        self.put_all(&self.machine.tell_limits(now_ns))?;
        let mut pids = self.machine.pids();
        self.named = pids.iter().copied().filter(|pid| self.cut.has_name(&self.machine.name(*pid))).collect();
        pids.retain(|pid| self.has(*pid));
        for pid in &pids {
            self.put_all(&self.machine.introduce(*pid, now_ns))?;
        }
        for pid in &pids {
            self.place(*pid, now_ns)?;
        }
        for cpu in (0..header.nr_cpus()).filter(|cpu| !self.cut.has_all_tasks() && self.cut.has_cpu(*cpu)) {
            let pid = OTHERS_PID + cpu;
            let new = Record { time_ns: now_ns, cpu, what: What::New, pid, value: 0 };
            self.put(&new)?;
            for (cpu, value) in (0..).zip(names(OTHERS)) {
                self.put(&Record { cpu, what: What::Name, value, ..new })?;
            }
            if self.machine.cpus[cpu as usize].running.is_some_and(|pid| !self.has(pid)) {
                self.begin_others(cpu, now_ns)?;
            }
        }
        self.put_all(&self.machine.tell_under_way(now_ns))
    }

    /// Tells where a task is, if it is on a CPU that is kept.
    fn place(&mut self, pid: u32, now_ns: u64) -> Result<(), CutError> {
        if self.machine.at(pid).cpu().is_some_and(|cpu| self.cut.has_cpu(cpu)) {
            self.put_all(&self.machine.tell_place(pid, now_ns))?;
        }
        Ok(())
    }

    fn begin_others(&mut self, cpu: u32, time_ns: u64) -> Result<(), CutError> {
        if mem::replace(&mut self.others[cpu as usize], true) {
            return Ok(());
        }
        let waits = Record { time_ns, cpu, what: What::Enqueue, pid: OTHERS_PID + cpu, value: 0 };
        self.put_all(&[waits, Record { what: What::Run, ..waits }])
    }

    fn end_others(&mut self, cpu: u32, time_ns: u64) -> Result<(), CutError> {
        if !mem::replace(&mut self.others[cpu as usize], false) {
            return Ok(());
        }
        self.put(&Record { time_ns, cpu, what: What::Block, pid: OTHERS_PID + cpu, value: 0 })
    }

    /// Takes in what happened next; [`Knife::machine`] is to follow.
    fn record(&mut self, record: &Record) -> Result<(), CutError> {
        self.end_naming(record)?;
        match record.what {
            // The name of a note goes with the note, which is about a CPU.
            What::NoteName => {
                if self.note_name.len() < NOTE_NAME_WORDS {
                    self.note_name.push(*record);
                }
                return Ok(());
            }
            What::Note => {
                let name = mem::take(&mut self.note_name);
                if self.is_kept(record) {
                    self.put_all(&name)?;
                }
            }
            What::Considered => {
                if self.considered.len() < PIECES_MAX {
                    self.considered.push(*record);
                }
                return Ok(());
            }
            // These tell how long the deciding took.
            What::Call | What::Lock | What::Unlock => {}
            _ => {
                let considered = mem::take(&mut self.considered);
                if self.is_kept(record) {
                    self.put_all(&considered)?;
                }
            }
        }
        self.make_way(record)?;
        if self.is_kept(record) {
            self.put(record)?;
        }
        if record.what == What::Exit {
            self.named.remove(&record.pid);
        }
        Ok(())
    }

    /// Whether a record is in the piece as it is.
    fn is_kept(&self, record: &Record) -> bool {
        let Record { cpu, what, pid, .. } = *record;
        match what {
            What::Limit | What::Fault | What::Upgrade | What::Queue => true,
            What::New | What::Name | What::Nice | What::Affinity | What::Allowed => self.has(pid),
            What::Group | What::Depart | What::Return | What::Exit => self.has(pid),
            _ => self.cut.has_cpu(cpu) && (pid == 0 || self.has(pid)),
        }
    }

    /// Writes what has to come before a record so that the piece stays in itself right.
    fn make_way(&mut self, record: &Record) -> Result<(), CutError> {
        let Record { time_ns, cpu, what, pid, .. } = *record;
        if !matches!(what, What::Enqueue | What::Run | What::Idle | What::Offline) {
            return Ok(());
        }
        let is_kept = what == What::Idle || what == What::Offline || self.has(pid);
        if !self.cut.has_cpu(cpu) {
            // It leaves what can be seen.
            let from = self.machine.at(pid).cpu().filter(|from| is_kept && pid != 0 && self.cut.has_cpu(*from));
            return from.map_or(Ok(()), |cpu| self.put(&Record { cpu, what: What::Block, value: 0, ..*record }));
        }
        match what {
            What::Enqueue => Ok(()),
            What::Run if !is_kept => self.begin_others(cpu, time_ns),
            _ => {
                self.end_others(cpu, time_ns)?;
                let comes = matches!(self.machine.at(pid), At::Waiting(from) if !self.cut.has_cpu(from));
                let waits = Record { what: What::Enqueue, value: 0, ..*record };
                if what == What::Run && comes { self.put(&waits) } else { Ok(()) }
            }
        }
    }

    /// A name is complete when anything else is recorded: whether its task is kept from now on.
    fn end_naming(&mut self, record: &Record) -> Result<(), CutError> {
        let Record { time_ns, cpu: piece, what, pid, .. } = *record;
        if what == What::New {
            // A PID may be used again, by one of another name.
            self.named.remove(&pid);
        }
        if self.cut.names.is_empty() || what == What::Name && piece > 0 && self.naming == Some(pid) {
            return Ok(());
        }
        let next = (what == What::Name).then_some(pid);
        let Some(named) = mem::replace(&mut self.naming, next) else { return Ok(()) };
        if self.has(named) || !self.cut.has_name(&self.machine.name(named)) {
            return Ok(());
        }
        self.named.insert(named);
        if let At::Running(cpu) = self.machine.at(named) {
            self.end_others(cpu, time_ns)?;
        }
        self.put_all(&self.machine.introduce(named, time_ns))?;
        self.place(named, time_ns)
    }
}
