//! Queues of hints between tasks and the policy, as in the kernel: what a task has written reaches the policy soon
//! after the next event of the load's task that it belongs to, or after it rings.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use ekiden::{CpuId, NotTold, QueueId};
use ekiden_host::abi::{Event, EventKind};
use ekiden_trace::{InQueue, QueueNote};
use ekiden_workload::HintWord;

use crate::alarm::Alarm;
use crate::behave::Flow;
use crate::kernel::Kernel;
use crate::masks::SimHost;
use crate::task::{State, TaskIndex};
use crate::trace::What;

/// Records of each ring.
const RECORDS: usize = 64;

/// The task's end of a queue. Its number for the policy is one more than that in the load.
#[derive(Debug, Default)]
pub(crate) struct HintQueue {
    /// The load's task that has opened it, by using it first; its children may, too.
    owner: Option<Owner>,
    closed: bool,
    /// What the policy has not heard.
    hints: VecDeque<Vec<u8>>,
    /// The time has come for these.
    due: bool,
    readers: VecDeque<TaskIndex>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    root: u32,
    /// The task itself, which may be gone.
    task: TaskIndex,
    /// What its policy knows the program by.
    process: u32,
}

/// The policy's end: what it has said, by number of the queue; nothing while that is not open.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<Vec<Option<Said>>>);

/// What a policy has said in a queue.
#[derive(Debug, Default)]
pub(crate) struct Said {
    notices: VecDeque<Vec<u8>>,
    /// How many notices there were, and how many more without room, since that was noted last.
    told: u32,
    not_told: u32,
}

impl Notices {
    fn with<R>(&self, queue: usize, with: impl FnOnce(&mut Option<Said>) -> R) -> R {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() <= queue {
            queues.resize_with(queue + 1, || None);
        }
        with(&mut queues[queue])
    }

    fn put(&self, queue: usize, notice: &[u8]) -> Result<(), NotTold> {
        self.with(queue, |queue| match queue {
            Some(said) if said.notices.len() < RECORDS => {
                said.notices.push_back(notice.to_vec());
                said.told += 1;
                Ok(())
            }
            Some(said) => {
                said.not_told += 1;
                Err(NotTold::Full)
            }
            None => Err(NotTold::Closed),
        })
    }
}

impl SimHost {
    /// For [`Host::notify`](ekiden_host::Host::notify).
    pub(crate) fn tell(&self, queue: QueueId, notice: &[u8]) -> Result<(), NotTold> {
        let queue = queue.checked_sub(1).ok_or(NotTold::Closed)?;
        // Any number may come here: those of the load are below the number of its queues.
        if queue >= self.queues.load(Relaxed) {
            return Err(NotTold::Closed);
        }
        let told = self.notices.put(queue as usize, notice);
        self.has_told.fetch_or(told != Err(NotTold::Closed), Relaxed);
        told
    }
}

impl Kernel {
    fn queue(&mut self, number: u32) -> &mut HintQueue {
        &mut self.shared.queues[number as usize]
    }

    /// A task uses a queue; the one that does so first opens it.
    fn use_queue(&mut self, task: TaskIndex, number: u32) {
        let (root, process) = (self.task(task).root, self.task(task).process);
        let owner = Owner { root, task: self.roots[root as usize].1, process };
        let queue = self.queue(number);
        if queue.owner.is_some() || queue.closed {
            return;
        }
        queue.owner = Some(owner);
        self.questions.notices.with(number as usize, |queue| *queue = Some(Said::default()));
        self.open_queue(number + 1, Some(owner));
    }

    fn push_queue_record(&mut self, queue: u32, owner: Option<Owner>, what: InQueue, times: usize) {
        let times = times.try_into().unwrap_or(u32::MAX);
        // Where the program's first task is, or was last: a queue has no CPU.
        let cpu = owner.map_or(0, |owner| self.task(owner.task).cpu);
        self.push_record(What::Queue, cpu, owner.map(|owner| owner.task), QueueNote { queue, what, times }.to_value());
    }

    /// A program has opened a queue, which the policy knows by this number.
    pub(crate) fn open_queue(&mut self, queue: u32, owner: Option<Owner>) {
        self.push_queue_record(queue, owner, InQueue::Opened, 0);
        let process = owner.map_or(0, |owner| owner.process);
        let name = u64::from(process) << 32 | u64::from(queue);
        self.deliver(&Event { args: [name, 0], ..Event::new(EventKind::QueueOpen, 0) }, &[]);
    }

    /// Has the policy hear these hints, whose number is `times`.
    pub(crate) fn hear_hints(&mut self, queue: u32, owner: Option<Owner>, hints: &[u8], times: usize) {
        self.push_queue_record(queue, owner, InQueue::Heard, times);
        let event = Event { args: [queue.into(), hints.len() as u64], ..Event::new(EventKind::QueueReady, 0) };
        let refused = self.deliver(&event, hints).map_or(0, |outcome| outcome.cpu);
        // A number that is negative is no answer: none of the hints was refused.
        if refused > 0 {
            self.push_queue_record(queue, owner, InQueue::Refused, refused as usize);
        }
    }

    pub(crate) fn close_queue(&mut self, queue: u32, owner: Option<Owner>) {
        self.push_queue_record(queue, owner, InQueue::Closed, 0);
        self.deliver(&Event { args: [queue.into(), 0], ..Event::new(EventKind::QueueClose, 0) }, &[]);
    }

    /// What the policy has said since the last time.
    fn note_said(&mut self, number: u32) {
        let count = |said: &mut Said| (std::mem::take(&mut said.told), std::mem::take(&mut said.not_told));
        let (told, not_told) =
            self.questions.notices.with(number as usize, |queue| queue.as_mut().map_or((0, 0), count));
        let owner = self.queue(number).owner;
        for (what, times) in [(InQueue::Told, told), (InQueue::NotTold, not_told)].into_iter().filter(|said| said.1 > 0)
        {
            self.push_queue_record(number + 1, owner, what, times as usize);
        }
    }

    /// Writes a hint, unless there is no room.
    pub(crate) fn write_hint(&mut self, task: TaskIndex, number: u32, hint: u32, ring: bool) {
        self.use_queue(task, number);
        let pid = self.task(task).pid;
        let words = self.programs.hints[hint as usize].iter().map(|word| match word {
            HintWord::Value(value) => *value,
            HintWord::OwnPid => pid,
            HintWord::Held { pipe } => self.shared.pipes[*pipe as usize].bytes as u32,
        });
        let bytes = words.flat_map(u32::to_ne_bytes).collect();
        let now_ns = self.now_ns;
        let queue = self.queue(number);
        let (owner, closed, has_room) = (queue.owner, queue.closed, queue.hints.len() < RECORDS);
        if has_room && !closed {
            queue.hints.push_back(bytes);
        } else if !closed {
            self.push_queue_record(number + 1, owner, InQueue::Full, 1);
        }
        self.hints_wait = true;
        if ring {
            self.queue(number).due = true;
            self.alarms.set_if_earlier(Alarm::Queues, now_ns);
        }
    }

    /// Takes the oldest notice, or waits for one.
    pub(crate) fn read_notice(&mut self, task: TaskIndex, cpu: CpuId, number: u32) -> Flow {
        self.use_queue(task, number);
        let notice = self.questions.notices.with(number as usize, |queue| queue.as_mut()?.notices.pop_front());
        if notice.is_some() || self.queue(number).closed {
            self.go_to(task, self.task(task).place + 1);
            return Flow::On;
        }
        self.queue(number).readers.push_back(task);
        self.spend(task, self.machine.model.costs.syscall_ns.max(1));
        self.block(task, cpu, State::ForNotice { queue: number });
        Flow::Sleeps
    }

    /// Something happened to a task that the kernel hears of: what its program has written is due, in an interrupt of
    /// its own.
    #[inline]
    pub(crate) fn hints_are_due(&mut self, task: TaskIndex) {
        if !self.hints_wait {
            return;
        }
        let root = self.task(task).root;
        let is_its = |queue: &&mut HintQueue| queue.owner.is_some_and(|owner| owner.root == root);
        for queue in self.shared.queues.iter_mut().filter(is_its).filter(|queue| !queue.hints.is_empty()) {
            queue.due = true;
            self.alarms.set_if_earlier(Alarm::Queues, self.now_ns);
        }
    }

    /// The interrupt: hints go to the policy, and tasks that wait for notices that are there wake up.
    pub(crate) fn serve_queues(&mut self) {
        for number in 0..self.shared.queues.len() as u32 {
            let queue = self.queue(number);
            if std::mem::take(&mut queue.due) && !queue.hints.is_empty() {
                let (owner, times) = (queue.owner, queue.hints.len());
                let hints: Vec<u8> = queue.hints.drain(..).flatten().collect();
                self.hear_hints(number + 1, owner, &hints, times);
            }
        }
        self.hints_wait = self.shared.queues.iter().any(|queue| !queue.hints.is_empty());
        self.questions.has_told.store(false, Relaxed);
        for number in 0..self.shared.queues.len() as u32 {
            self.note_said(number);
            let count = |queue: &mut Option<Said>| queue.as_ref().map_or(0, |said| said.notices.len());
            let there = self.questions.notices.with(number as usize, count);
            for _ in 0..there {
                let Some(reader) = self.queue(number).readers.pop_front() else { break };
                self.wake(reader, None, 0);
            }
        }
    }

    /// One of the load's own tasks is gone, and its queues with it. Tasks that still wait there continue without a
    /// notice.
    pub(crate) fn close_queues(&mut self, root: u32) {
        for number in 0..self.shared.queues.len() as u32 {
            let queue = self.queue(number);
            let owner = queue.owner.filter(|owner| owner.root == root);
            if owner.is_none() || queue.closed {
                continue;
            }
            queue.closed = true;
            // What it said before it ended still counts.
            let times = queue.hints.len();
            let hints: Vec<u8> = queue.hints.drain(..).flatten().collect();
            let readers = std::mem::take(&mut queue.readers);
            if !hints.is_empty() {
                self.hear_hints(number + 1, owner, &hints, times);
            }
            self.note_said(number);
            self.questions.notices.with(number as usize, |queue| *queue = None);
            self.close_queue(number + 1, owner);
            readers.into_iter().for_each(|reader| self.wake(reader, None, 0));
        }
    }
}
