//! Queues of hints between tasks and the policy, as in the kernel: what a task has written reaches the policy soon
//! after the next event of the load's task that it belongs to, or after it rings.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use ekiden::abi::EventKind;
use ekiden::{CpuId, NotTold, QueueId};
use ekiden_workload::HintWord;

use crate::alarm::Alarm;
use crate::behave::Flow;
use crate::kernel::Kernel;
use crate::masks::Questions;
use crate::task::{State, TaskIndex};

/// Records of each ring.
const RECORDS: usize = 64;

/// The task's end of a queue. Its number for the policy is one more than that in the load.
#[derive(Debug, Default)]
pub(crate) struct HintQueue {
    /// The load's task that has opened it, by using it first; its children may, too.
    owner: Option<u32>,
    closed: bool,
    /// What the policy has not heard.
    hints: VecDeque<Vec<u8>>,
    /// The time has come for these.
    due: bool,
    readers: VecDeque<TaskIndex>,
}

/// The policy's end: what it has said, by number of the queue; nothing while that is not open.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<Vec<Option<VecDeque<Vec<u8>>>>>);

impl Notices {
    fn with<R>(&self, queue: usize, with: impl FnOnce(&mut Option<VecDeque<Vec<u8>>>) -> R) -> R {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() <= queue {
            queues.resize_with(queue + 1, || None);
        }
        with(&mut queues[queue])
    }

    fn put(&self, queue: usize, notice: &[u8]) -> Result<(), NotTold> {
        self.with(queue, |queue| match queue {
            Some(notices) if notices.len() < RECORDS => {
                notices.push_back(notice.to_vec());
                Ok(())
            }
            Some(_) => Err(NotTold::Full),
            None => Err(NotTold::Closed),
        })
    }
}

impl Questions {
    /// For [`Host::notify`](ekiden::Host::notify).
    pub(crate) fn tell(&self, queue: QueueId, notice: &[u8]) -> Result<(), NotTold> {
        let queue = queue.checked_sub(1).ok_or(NotTold::Closed)?;
        // Any number may come here: those of the load are below the number of its queues.
        if queue >= self.queues.load(Relaxed) {
            return Err(NotTold::Closed);
        }
        let told = self.notices.put(queue as usize, notice);
        self.has_told.fetch_or(told.is_ok(), Relaxed);
        told
    }
}

impl Kernel {
    fn queue(&mut self, number: u32) -> &mut HintQueue {
        &mut self.shared.queues[number as usize]
    }

    /// A task uses a queue; the one that does so first opens it.
    fn use_queue(&mut self, task: TaskIndex, number: u32) {
        let root = self.task(task).root;
        let queue = self.queue(number);
        if queue.owner.is_some() || queue.closed {
            return;
        }
        queue.owner = Some(root);
        self.questions.notices.with(number as usize, |queue| *queue = Some(VecDeque::new()));
        self.open_queue(number + 1, self.task(task).process);
    }

    /// Writes a hint, unless there is no room.
    pub(crate) fn write_hint(&mut self, task: TaskIndex, number: u32, hint: u32, ring: bool) {
        self.use_queue(task, number);
        let pid = self.task(task).pid;
        let words = self.programs.hints[hint as usize].iter().map(|word| match word {
            HintWord::Value(value) => *value,
            HintWord::OwnPid => pid,
        });
        let bytes = words.flat_map(u32::to_ne_bytes).collect();
        let now_ns = self.now_ns;
        let queue = self.queue(number);
        if queue.hints.len() < RECORDS && !queue.closed {
            queue.hints.push_back(bytes);
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
        let notice = self.questions.notices.with(number as usize, |queue| queue.as_mut()?.pop_front());
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
        let owner = Some(self.task(task).root);
        for queue in self.shared.queues.iter_mut().filter(|queue| queue.owner == owner && !queue.hints.is_empty()) {
            queue.due = true;
            self.alarms.set_if_earlier(Alarm::Queues, self.now_ns);
        }
    }

    /// The interrupt: hints go to the policy, and those who wait for notices that are there wake up.
    pub(crate) fn serve_queues(&mut self) {
        for number in 0..self.shared.queues.len() as u32 {
            let queue = self.queue(number);
            if std::mem::take(&mut queue.due) && !queue.hints.is_empty() {
                let hints: Vec<u8> = queue.hints.drain(..).flatten().collect();
                self.tell_queue(EventKind::QueueReady, number + 1, &hints, 2);
            }
        }
        self.hints_wait = self.shared.queues.iter().any(|queue| !queue.hints.is_empty());
        self.questions.has_told.store(false, Relaxed);
        for number in 0..self.shared.queues.len() as u32 {
            let there = self.questions.notices.with(number as usize, |queue| queue.as_ref().map_or(0, VecDeque::len));
            for _ in 0..there {
                let Some(reader) = self.queue(number).readers.pop_front() else { break };
                self.wake(reader, None, 0);
            }
        }
    }

    /// One of the load's own tasks is gone, and its queues with it. Those that still wait there continue without a
    /// notice.
    pub(crate) fn close_queues(&mut self, root: u32) {
        for number in 0..self.shared.queues.len() as u32 {
            let queue = self.queue(number);
            if queue.owner != Some(root) || queue.closed {
                continue;
            }
            queue.closed = true;
            // What it said before it ended still counts.
            let hints: Vec<u8> = queue.hints.drain(..).flatten().collect();
            let readers = std::mem::take(&mut queue.readers);
            if !hints.is_empty() {
                self.tell_queue(EventKind::QueueReady, number + 1, &hints, 2);
            }
            self.questions.notices.with(number as usize, |queue| *queue = None);
            self.tell_queue(EventKind::QueueClose, number + 1, &[], 3);
            readers.into_iter().for_each(|reader| self.wake(reader, None, 0));
        }
    }
}
