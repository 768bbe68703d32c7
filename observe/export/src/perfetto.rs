//! A trace for <https://ui.perfetto.dev>: Perfetto's protobuf format, with the messages and numbers of its published
//! schema (`protos/perfetto/trace`), as far as they are needed.
//!
//! Switches and wake-ups are the kernel's own events of these names, so that Perfetto draws them as it draws a kernel's.
//! Each CPU has a counter of its run queue, and a track with what the policy notes there if it does; violations have tracks.

use std::{collections::HashSet, io, mem};

use ekiden_check::Violation;
use ekiden_trace::{Machine, NoteNames, Record, What};
use prost::{Message, Oneof};

/// Events that stand in one packet.
const PACKET_EVENTS: usize = 512;

/// The only writer of the packets.
const SEQUENCE: u32 = 1;

/// The state of a task that could go on, and of one that sleeps or is dead, as in `sched_switch`.
const RUNNABLE: i64 = 0;
const SLEEPS: i64 = 1;
const DEAD: i64 = 16;

/// The priority of nice 0.
const PRIO: i32 = 120;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(oneof = "Data", tags = "1, 11, 60")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Data {
    #[prost(message, tag = "1")]
    FtraceEvents(FtraceEventBundle),
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

#[derive(Clone, PartialEq, Message)]
struct FtraceEventBundle {
    #[prost(uint32, optional, tag = "1")]
    cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    event: Vec<FtraceEvent>,
}

#[derive(Clone, PartialEq, Message)]
struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "2")]
    pid: Option<u32>,
    #[prost(oneof = "Event", tags = "4, 17")]
    event: Option<Event>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Event {
    #[prost(message, tag = "4")]
    SchedSwitch(SchedSwitch),
    #[prost(message, tag = "17")]
    SchedWakeup(SchedWakeup),
}

#[derive(Clone, PartialEq, Message)]
struct SchedSwitch {
    #[prost(string, optional, tag = "1")]
    prev_comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    prev_pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    prev_prio: Option<i32>,
    #[prost(int64, optional, tag = "4")]
    prev_state: Option<i64>,
    #[prost(string, optional, tag = "5")]
    next_comm: Option<String>,
    #[prost(int32, optional, tag = "6")]
    next_pid: Option<i32>,
    #[prost(int32, optional, tag = "7")]
    next_prio: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct SchedWakeup {
    #[prost(string, optional, tag = "1")]
    comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    prio: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    target_cpu: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    unit_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    /// 1 begins a slice, 2 ends it, 3 is a moment, 4 is a counter's value.
    #[prost(int32, optional, tag = "9")]
    r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    counter_value: Option<i64>,
}

/// A value that is shown of an event besides its name.
#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;

/// The track of notes of CPU 0; other tracks have numbers from 1 on, and there are not as many violations.
const NOTES: u64 = 1 << 40;

/// What runs on a CPU, and what has not been written yet.
#[derive(Clone, Debug, Default)]
struct Cpu {
    /// 0 is the idle task.
    pid: u32,
    state: i64,
    events: Vec<FtraceEvent>,
    /// How many tasks wait or run there, since when, and how many they were when that was last written.
    tasks: u32,
    since_ns: u64,
    written: Option<u32>,
    /// Whether its track of notes has been described.
    has_notes: bool,
}

/// Writes a trace for Perfetto, record by record. Takes memory for CPUs and tasks, whatever the length of the trace.
pub struct Perfetto<W> {
    out: W,
    now_ns: u64,
    woken: HashSet<u32>,
    notes: NoteNames,
    cpus: Vec<Cpu>,
}

impl<W: io::Write> Perfetto<W> {
    /// Begins a file. It is written in small pieces: put a [`BufWriter`](io::BufWriter) around it.
    ///
    /// # Errors
    /// When nothing can be written.
    pub fn new(nr_cpus: u32, out: W) -> io::Result<Self> {
        let cpus = vec![Cpu::default(); nr_cpus as usize];
        let mut new = Self { out, now_ns: 0, woken: HashSet::new(), notes: NoteNames::default(), cpus };
        // Perfetto passes over values of counters that have not been described.
        for cpu in 0..nr_cpus {
            let counter = CounterDescriptor { unit_name: Some("tasks".into()) };
            new.describe(u64::from(cpu) + 2, format!("CPU {cpu} run queue"), Some(counter))?;
        }
        Ok(new)
    }

    /// Takes in what happened next. `machine` is as it was right before.
    ///
    /// # Errors
    /// When nothing more can be written.
    pub fn record(&mut self, record: &Record, machine: &Machine) -> io::Result<()> {
        let Record { time_ns, cpu, what, pid, .. } = *record;
        // A damaged trace may go backwards; then time stands still.
        self.now_ns = self.now_ns.max(time_ns);
        match what {
            What::Note | What::NoteName => self.note(record)?,
            What::Run => self.switch(time_ns, cpu, pid, machine)?,
            What::Idle => self.switch(time_ns, cpu, 0, machine)?,
            What::New | What::Wake => {
                self.woken.insert(pid);
            }
            // Where a wake-up leads to. A task that was awake and waits again is shown by `sched_switch`.
            What::Enqueue if self.woken.remove(&pid) => {
                let wakeup = SchedWakeup {
                    comm: Some(comm(pid, machine)),
                    pid: Some(pid as i32),
                    prio: Some(PRIO),
                    target_cpu: Some(cpu as i32),
                };
                self.add(time_ns, cpu, Event::SchedWakeup(wakeup))?;
            }
            What::Block | What::Throttle | What::Exit | What::Preempt => {
                let entry = &mut self.cpus[cpu as usize];
                if entry.pid == pid {
                    entry.state = match what {
                        What::Preempt => RUNNABLE,
                        What::Exit => DEAD,
                        _ => SLEEPS,
                    };
                }
                if what == What::Exit {
                    self.woken.remove(&pid);
                }
            }
            _ => {}
        }
        self.count(record, machine)
    }

    /// A moment on the track of the CPU's notes, with the value and the task.
    fn note(&mut self, record: &Record) -> io::Result<()> {
        let Some(note) = self.notes.record(record) else { return Ok(()) };
        let Record { time_ns, cpu, pid, .. } = *record;
        let track = NOTES + u64::from(cpu);
        if !mem::replace(&mut self.cpus[cpu as usize].has_notes, true) {
            self.describe(track, format!("CPU {cpu} notes"), None)?;
        }
        let shown = |name: &str, value| DebugAnnotation { name: Some(name.into()), uint_value: Some(value) };
        let mut debug_annotations = vec![shown("value", note.value)];
        debug_annotations.extend((pid != 0).then(|| shown("pid", pid.into())));
        let event = TrackEvent {
            r#type: Some(INSTANT),
            track_uuid: Some(track),
            name: Some(note.name.to_string()),
            debug_annotations,
            ..TrackEvent::default()
        };
        self.packet(Some(time_ns), Data::TrackEvent(event))
    }

    /// Follows how many tasks wait or run on each CPU.
    fn count(&mut self, record: &Record, machine: &Machine) -> io::Result<()> {
        let to = match record.what {
            What::Enqueue | What::Run => Some(record.cpu),
            What::New | What::Preempt | What::Block | What::Throttle | What::Exit => None,
            _ => return Ok(()),
        };
        let from = machine.at(record.pid).cpu();
        if from != to {
            if let Some(cpu) = from {
                self.tell(cpu)?;
                self.cpus[cpu as usize].tasks -= 1;
            }
            if let Some(cpu) = to {
                self.tell(cpu)?;
                self.cpus[cpu as usize].tasks += 1;
            }
        }
        Ok(())
    }

    /// Writes how many tasks a CPU has had up to now. What lasts no time at all is not seen.
    fn tell(&mut self, cpu: u32) -> io::Result<()> {
        let now_ns = self.now_ns;
        let Cpu { tasks, since_ns, written, .. } = &mut self.cpus[cpu as usize];
        let (tasks, since_ns) = (*tasks, mem::replace(since_ns, now_ns));
        if since_ns == now_ns || written.replace(tasks) == Some(tasks) {
            return Ok(());
        }
        self.counter(cpu, since_ns, tasks)
    }

    fn counter(&mut self, cpu: u32, time_ns: u64, tasks: u32) -> io::Result<()> {
        let event = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid: Some(u64::from(cpu) + 2),
            counter_value: Some(tasks.into()),
            ..TrackEvent::default()
        };
        self.packet(Some(time_ns), Data::TrackEvent(event))
    }

    /// Nothing more happens. Adds what the checks have found.
    ///
    /// # Errors
    /// When nothing more can be written.
    pub fn finish(mut self, violations: &[Violation]) -> io::Result<()> {
        let nr_cpus = self.cpus.len();
        for (cpu, number) in (0..nr_cpus).zip(0..) {
            self.flush(cpu)?;
            let Cpu { tasks, since_ns, written, .. } = self.cpus[cpu];
            if written != Some(tasks) {
                self.counter(number, since_ns, tasks)?;
            }
        }
        // Slices of one track must not overlap, and violations may: each check has as many tracks as it needs.
        let mut tracks: Vec<(&str, u64)> = Vec::new();
        let mut sorted: Vec<&Violation> = violations.iter().collect();
        sorted.sort_by_key(|violation| violation.since_ns);
        for violation in sorted {
            let free =
                tracks.iter().position(|(check, until)| *check == violation.check && *until <= violation.since_ns);
            let track = free.unwrap_or(tracks.len());
            let uuid = (nr_cpus + track + 2) as u64;
            if free.is_none() {
                tracks.push((violation.check, 0));
                self.describe(uuid, format!("Violations: {}", violation.check), None)?;
            }
            tracks[track].1 = violation.at_ns;
            for (kind, time_ns, name) in
                [(SLICE_BEGIN, violation.since_ns, Some(violation.message.clone())), (SLICE_END, violation.at_ns, None)]
            {
                let event = TrackEvent { r#type: Some(kind), track_uuid: Some(uuid), name, ..TrackEvent::default() };
                self.packet(Some(time_ns), Data::TrackEvent(event))?;
            }
        }
        self.out.flush()
    }

    fn switch(&mut self, time_ns: u64, cpu: u32, next: u32, machine: &Machine) -> io::Result<()> {
        let Cpu { pid: before, state, .. } = self.cpus[cpu as usize];
        if before == next {
            return Ok(());
        }
        let switch = SchedSwitch {
            prev_comm: Some(comm(before, machine)),
            prev_pid: Some(before as i32),
            prev_prio: Some(PRIO),
            prev_state: Some(state),
            next_comm: Some(comm(next, machine)),
            next_pid: Some(next as i32),
            next_prio: Some(PRIO),
        };
        self.add(time_ns, cpu, Event::SchedSwitch(switch))?;
        let entry = &mut self.cpus[cpu as usize];
        (entry.pid, entry.state) = (next, RUNNABLE);
        Ok(())
    }

    fn add(&mut self, time_ns: u64, cpu: u32, event: Event) -> io::Result<()> {
        let entry = &mut self.cpus[cpu as usize];
        entry.events.push(FtraceEvent { timestamp: Some(time_ns), pid: Some(entry.pid), event: Some(event) });
        if entry.events.len() >= PACKET_EVENTS { self.flush(cpu as usize) } else { Ok(()) }
    }

    fn flush(&mut self, cpu: usize) -> io::Result<()> {
        let event = std::mem::take(&mut self.cpus[cpu].events);
        if event.is_empty() {
            return Ok(());
        }
        self.packet(None, Data::FtraceEvents(FtraceEventBundle { cpu: Some(cpu as u32), event }))
    }

    fn describe(&mut self, uuid: u64, name: String, counter: Option<CounterDescriptor>) -> io::Result<()> {
        let track = TrackDescriptor { uuid: Some(uuid), name: Some(name), counter };
        self.packet(None, Data::TrackDescriptor(track))
    }

    /// Traces of one packet each, one after the other, are one trace.
    fn packet(&mut self, timestamp: Option<u64>, data: Data) -> io::Result<()> {
        let packet = TracePacket { timestamp, trusted_packet_sequence_id: Some(SEQUENCE), data: Some(data) };
        self.out.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
    }
}

fn comm(pid: u32, machine: &Machine) -> String {
    if pid == 0 { "swapper".into() } else { machine.name(pid).into_owned() }
}
