//! A task of a load, as a process: it sets itself up, waits at the gate, and interprets its program.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

use ekiden_user::hints::Geometry;
use rustix::io::{Errno, read, write};
use rustix::process::{WaitId, WaitIdOptions, getpid, setpriority_process, waitid};
use rustix::thread::{ClockId, clock_nanosleep_absolute, sched_yield};

use crate::random::Random;
use crate::real::exec::{Class, Cpus, NOTHING};
use crate::real::process_group::{Gate, now_ns, timespec};
use crate::real::slot::{Doing, Failure, OrFailure, Slot, Slots};
use crate::real::spin::Spin;
use crate::real::sys;
use crate::real::talk;
use crate::real::wait::Waits;
use crate::spec::{Device, Step, TaskSpec};

/// What all tasks of one run share.
pub(crate) struct RunContext {
    pub(crate) class: Class,
    pub(crate) spin: Spin,
    pub(crate) cpus: Cpus,
    pub(crate) pipes: Vec<(OwnedFd, OwnedFd)>,
    pub(crate) slots: Slots,
    pub(crate) waits: Waits,
    pub(crate) devices: Vec<Device>,
    /// What its queues of hints hold, if the load has any.
    pub(crate) types: Option<Geometry>,
}

/// Whether a program continues after a step.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    End,
}

/// A process that performs a program: of a task, or of a child that a task forked.
#[derive(Clone, Copy)]
pub(crate) struct Actor<'a> {
    context: &'a RunContext,
    slot: Slot<'a>,
    is_child: bool,
}

impl<'a> Actor<'a> {
    /// The process of the load's task number `index`.
    pub(crate) fn new(context: &'a RunContext, index: usize) -> Self {
        Actor { context, slot: context.slots.of(index), is_child: false }
    }

    /// The whole life of a task; returns its exit status.
    pub(crate) fn live(self, spec: &TaskSpec, gate: &Gate) -> i32 {
        self.slot.touch();
        if let Err(failure) = self.set_up(spec) {
            self.slot.fail(failure);
            gate.wait(false);
            return 0;
        }
        gate.wait(true);
        self.perform(|| {
            self.start(spec.start_ns)?;
            self.run(&spec.program)
        })
    }

    fn set_up(self, spec: &TaskSpec) -> Result<(), Failure> {
        if self.context.class == Class::Ext {
            sys::enter_ext_class().or_fail(Doing::EnterExtClass)?;
        }
        self.set_nice(spec.nice)?;
        self.set_affinity(spec.affinity.as_deref())
    }

    fn start(self, start_ns: u64) -> Result<(), Failure> {
        if start_ns > 0 {
            sleep_until(self.slot.zero_ns.load(Relaxed).saturating_add(start_ns))?;
        }
        self.slot.begin();
        Ok(())
    }

    fn perform(self, program: impl FnOnce() -> Result<Flow, Failure>) -> i32 {
        match program() {
            Ok(_) => self.finish(),
            Err(failure) => self.slot.fail(failure),
        }
        0
    }

    fn finish(self) {
        match self.is_child {
            true => self.slot.finish_child(),
            false => self.slot.finish(),
        }
    }

    fn run(self, steps: &[Step]) -> Result<Flow, Failure> {
        for step in steps {
            if self.step(step)? == Flow::End {
                return Ok(Flow::End);
            }
        }
        Ok(Flow::On)
    }

    fn step(self, step: &Step) -> Result<Flow, Failure> {
        match step {
            Step::Run { ns } => self.context.spin.work(*ns),
            Step::RunFor { ns } => {
                let until_ns = now_ns().saturating_add(*ns);
                while now_ns() < until_ns {}
            }
            Step::Sleep { ns } => sleep_until(now_ns().saturating_add(*ns))?,
            Step::PipeWrite { pipe } => self.pipe_write(*pipe)?,
            Step::PipeRead { pipe } => self.pipe_read(*pipe)?,
            Step::Yield => sched_yield(),
            Step::SetNice { nice } => self.set_nice(*nice)?,
            Step::SetAffinity { cpus } => self.set_affinity(cpus.as_deref())?,
            Step::Fork { program } => self.fork(program)?,
            Step::Wait => self.wait()?,
            Step::Exec => self.exec()?,
            Step::Repeat { times, steps } => {
                for _ in 0..*times {
                    if self.run(steps)? == Flow::End {
                        return Ok(Flow::End);
                    }
                }
            }
            Step::Forever { steps } => {
                while self.run(steps)? == Flow::On {}
                return Ok(Flow::End);
            }
            Step::Lock { .. }
            | Step::Unlock { .. }
            | Step::Barrier { .. }
            | Step::Await { .. }
            | Step::Signal { .. }
            | Step::Broadcast { .. } => self.meet(step).or_fail(Doing::WaitForOthers)?,
            Step::Timer { timer, period_ns, restart } => next_tick(*timer, *period_ns, *restart)?,
            Step::Io { device } => self.request(*device)?,
            Step::WriteHint { queue, hint, ring } => {
                talk::write_hint(self.types(), *queue, hint, *ring).or_fail(Doing::Talk)?;
            }
            Step::ReadNotice { queue } => talk::read_notice(self.types(), *queue).or_fail(Doing::Talk)?,
            Step::CpuOffline { .. } | Step::CpuOnline { .. } | Step::PipePoll { .. } | Step::IfHeld { .. } => {
                unreachable!("a load with this step was refused")
            }
            Step::Mark => self.slot.mark(),
            Step::Exit => return Ok(Flow::End),
        }
        Ok(Flow::On)
    }

    fn types(self) -> &'a Geometry {
        self.context.types.as_ref().expect("the load has steps of hints")
    }

    /// What has to do with other tasks.
    fn meet(self, step: &Step) -> Result<(), Errno> {
        let waits = &self.context.waits;
        match step {
            Step::Lock { lock, mode } => waits.lock(*lock, *mode),
            Step::Unlock { lock } => waits.unlock(*lock),
            Step::Barrier { barrier, parties, mode } => waits.barrier(*barrier, *parties, *mode),
            Step::Await { condition, lock } => waits.wait_for(*condition, *lock),
            Step::Signal { condition } => waits.signal(*condition, 1),
            Step::Broadcast { condition } => waits.signal(*condition, i32::MAX as u32),
            _ => Ok(()),
        }
    }

    /// A device is some servers, and time that passes while one has a request.
    fn request(self, number: u32) -> Result<(), Failure> {
        let device = &self.context.devices[number as usize];
        self.context.waits.take_server(number).or_fail(Doing::WaitForOthers)?;
        let service_ns = match device.exponential {
            true => RANDOM.with_borrow_mut(|random| {
                random
                    .get_or_insert_with(|| Random::new(getpid().as_raw_nonzero().get() as u64))
                    .exponential(device.service_ns)
            }),
            false => device.service_ns,
        };
        sleep_until(now_ns().saturating_add(service_ns))?;
        self.context.waits.free_server(number).or_fail(Doing::WaitForOthers)
    }

    fn pipe_write(self, pipe: u32) -> Result<(), Failure> {
        let (_, writer) = &self.context.pipes[pipe as usize];
        write(writer, &[0]).or_fail(Doing::Write).map(drop)
    }

    fn pipe_read(self, pipe: u32) -> Result<(), Failure> {
        let (reader, _) = &self.context.pipes[pipe as usize];
        read(reader, &mut [0_u8; 1]).or_fail(Doing::Read).map(drop)
    }

    fn set_nice(self, nice: i32) -> Result<(), Failure> {
        setpriority_process(None, nice).or_fail(Doing::SetNice)
    }

    fn set_affinity(self, cpus: Option<&[u32]>) -> Result<(), Failure> {
        self.context.cpus.confine(cpus).or_fail(Doing::SetAffinity)
    }

    fn fork(self, program: &[Step]) -> Result<(), Failure> {
        let child = Actor { is_child: true, ..self };
        let live = || {
            TIMERS.take();
            RANDOM.take();
            talk::begin_child();
            child.perform(|| child.run(program))
        };
        sys::spawn(live).or_fail(Doing::Fork)?;
        self.slot.count_child();
        Ok(())
    }

    fn wait(self) -> Result<(), Failure> {
        loop {
            match waitid(WaitId::All, WaitIdOptions::EXITED) {
                Ok(_) | Err(Errno::INTR) => {}
                // No child is left.
                Err(Errno::CHILD) => return Ok(()),
                Err(errno) => {
                    return Err(Failure { doing: Doing::Wait, errno });
                }
            }
        }
    }

    fn exec(self) -> Result<(), Failure> {
        // Noted before, because afterwards this program is gone.
        self.finish();
        Err(Command::new("/proc/self/exe").arg(NOTHING).exec()).or_fail(Doing::Exec)
    }
}

thread_local! {
    /// Random numbers of this task: another sequence in each, and in each run.
    static RANDOM: RefCell<Option<Random>> = const { RefCell::new(None) };
    /// When each timer of this task went off last. A task is a process of one thread.
    static TIMERS: RefCell<Vec<Option<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Sleeps until the timer goes off again.
fn next_tick(timer: u32, period_ns: u64, restart: bool) -> Result<(), Failure> {
    let now_ns = now_ns();
    let next_ns = TIMERS.with_borrow_mut(|timers| {
        timers.resize(timers.len().max(timer as usize + 1), None);
        let last = &mut timers[timer as usize];
        let next_ns = last.unwrap_or(now_ns).saturating_add(period_ns);
        *last = Some(if restart { next_ns.max(now_ns) } else { next_ns });
        next_ns
    });
    if next_ns > now_ns { sleep_until(next_ns) } else { Ok(()) }
}

/// Sleeps until the monotonic clock shows `ns`.
fn sleep_until(ns: u64) -> Result<(), Failure> {
    loop {
        match clock_nanosleep_absolute(ClockId::Monotonic, &timespec(ns)) {
            Err(Errno::INTR) => {}
            slept => return slept.or_fail(Doing::Sleep),
        }
    }
}
