//! What the agent does by the clock: its alarm, scans over the tasks that wait, and taking stock of all tasks anew.

use std::{sync::atomic::Ordering::Release, thread, time::Duration};

use ekiden_engine::Fault;
use ekiden_host::abi::{Event, EventKind, Outcome};

use crate::host::now_ns;
use crate::wire::state;

use super::{LOOKED_AT_AT_ONCE, Mind, SCANS_APART_MS, count};

/// How often this thread looks whether the kernel has begun to tell it of tasks.
const UNTIL_BEGUN: Duration = Duration::from_micros(100);

impl Mind {
    /// Timers, and what the engine wants to do at a time.
    pub(super) fn look_at_time(&mut self, is_due: bool) {
        let wants = self.has_timers || self.refill_ns != u64::MAX;
        if !wants && !is_due {
            return;
        }
        let now = now_ns();
        if wants {
            for cpu in 0..self.nr_cpus {
                let at_ns = self.timers_ns[cpu as usize];
                if at_ns != 0 && at_ns <= now {
                    self.timers_ns[cpu as usize] = 0;
                    self.deliver(&Event::new(EventKind::Timer, cpu), &[]);
                }
            }
            self.has_timers = self.timers_ns.iter().any(|at_ns| *at_ns != 0);
            if self.refill_ns <= now {
                self.refill(now);
            }
        }
        if now >= self.scan_at_ns {
            self.scan_on(now);
        }
    }

    /// Tells the engine of the time on each CPU on which it wants to hear of that; it says by that when it does again.
    fn refill(&mut self, now: u64) {
        for cpu in 0..self.nr_cpus {
            if self.refills_ns[cpu as usize] <= now {
                self.refills_ns[cpu as usize] = u64::MAX;
                self.deliver(&Event::new(EventKind::Refill, cpu), &[]);
            }
        }
        self.refill_ns = self.refills_ns.iter().copied().min().unwrap_or(u64::MAX);
    }

    pub(super) fn scan_on(&mut self, now: u64) {
        if self.scan_next == 0 {
            self.scan.number = self.scan.number.wrapping_add(1).max(1);
        }
        let mut outcome = Outcome::default();
        let (engine, scan, first) = (&self.engine, self.scan, self.scan_next);
        let next = engine.find_starved(scan, first, LOOKED_AT_AT_ONCE, &mut outcome);
        self.scan_next = next.unwrap_or(0);
        if next.is_none() {
            self.scan_at_ns = now + u64::from(SCANS_APART_MS) * 1_000_000;
        }
        self.kick(&outcome);
        if let Some(fault) = self.engine.fault() {
            self.starved = self.what_kernel_knows(&fault);
        }
    }

    /// What the kernel has of the CPU on which a task waited for too long, and of that task: if the policy has not left it waiting, a message or a
    /// decision about it was lost.
    fn what_kernel_knows(&self, fault: &Fault) -> String {
        let cpu = fault.cpu;
        if cpu >= self.nr_cpus {
            return String::new();
        }
        let slots = 1..=self.shared.slots();
        let of_pid = slots
            .map(|slot| (slot, self.shared.look(slot)))
            .find(|(_, seen)| seen.state != state::FREE && fault.message.ends_with(&format!("(PID {})", seen.pid)));
        let task = of_pid.map_or_else(String::new, |(slot, seen)| {
            let known = self.tasks[slot as usize];
            format!(
                "; it is in state {} with message {} of {} on CPU {}, decided {:?}, allowed {:x}",
                seen.state,
                known.seq,
                seen.seq,
                seen.cpu,
                known.decided.map(|(cpu, _)| cpu),
                self.shared.allowed(slot)[0]
            )
        });
        let yes = |is: bool| if is { "yes" } else { "no" };
        format!(
            ": CPU {cpu}: online {}, looks for work {}, and by its messages {}, next {}{task}",
            yes(self.questions.is_online(cpu)),
            yes(self.shared.looks(cpu)),
            yes(self.looking.contains(cpu)),
            self.shared.next(cpu)
        )
    }

    /// Gives way until there may be something to do.
    pub(super) fn pause(&self) {
        if self.shared.head() == 0 {
            // The kernel does not call this thread yet, which would keep a CPU busy until it does.
            thread::sleep(UNTIL_BEGUN);
            return;
        }
        // SAFETY: plain system call. The kernel calls this thread when there is something to do.
        unsafe { libc::sched_yield() };
    }

    /// Has the kernel call this thread when the next timer is due.
    pub(super) fn set_alarm(&mut self) {
        if !self.has_timers && self.refill_ns == u64::MAX {
            return;
        }
        let first = self.timers_ns.iter().copied().filter(|at_ns| *at_ns != 0).min().unwrap_or(u64::MAX);
        let first = first.min(self.refill_ns);
        if first != u64::MAX && first != self.alarm_ns {
            self.alarm_ns = first;
            self.shared.set_alarm(first.saturating_sub(now_ns()).max(1));
        }
    }

    /// Messages were lost: what is in the ring is left out, and each task and CPU looked at as it stands.
    pub(super) fn take_stock(&mut self) {
        count(&self.talk.stocks, 1);
        self.tail = self.shared.head();
        self.shared.control().tail.store(self.tail, Release);
        self.take_stock_of_groups();
        for slot in 1..=self.shared.slots() {
            self.take_stock_of(slot);
            if slot % 64 == 0 {
                self.shared.beats();
            }
        }
        for cpu in 0..self.nr_cpus {
            let is_online = self.shared.came_or_left(cpu).unwrap_or_else(|| self.questions.is_online(cpu));
            if is_online != self.questions.is_online(cpu) {
                self.comes_or_goes(cpu, is_online);
            }
            if self.shared.looks(cpu) {
                self.looks(cpu);
            }
        }
    }

    /// Makes the engine know of a task what the kernel knows.
    pub(super) fn take_stock_of(&mut self, slot: u32) {
        let seen = self.shared.look(slot);
        let known = self.tasks[slot as usize];
        let is_there = seen.state != state::FREE;
        if !known.id.is_none() && (!is_there || known.began != seen.began) {
            self.leaves(slot, EventKind::TaskExit, seen.cpu, seen.runtime_ns);
        }
        self.tasks[slot as usize].seq = seen.seq;
        if !is_there {
            return;
        }
        let is_new = self.tasks[slot as usize].id.is_none();
        if is_new {
            self.begins(slot, &seen);
        }
        let id = self.tasks[slot as usize].id;
        if id.is_none() {
            return;
        }
        self.questions.set_allowed(id, &self.shared.allowed(slot));
        if !is_new && self.engine.groups().is_active() {
            let event = Event { task: id, runtime_ns: seen.runtime_ns, ..Event::new(EventKind::TaskMove, seen.cpu) };
            self.joins(event, seen.group);
        }
        let mut event = Event { task: id, runtime_ns: seen.runtime_ns, ..Event::new(EventKind::Block, seen.cpu) };
        match seen.state {
            state::WAITS => {
                // Where it waits already, nothing changes by this.
                self.tasks[slot as usize].decided = None;
                event.kind = EventKind::Enqueue as u32;
                let outcome = self.deliver(&event, &[]);
                self.decide(seen.cpu, &outcome);
            }
            state::DECIDED | state::RUNS => {}
            _ => {
                self.tasks[slot as usize].decided = None;
                self.deliver(&event, &[]);
            }
        }
    }
}
