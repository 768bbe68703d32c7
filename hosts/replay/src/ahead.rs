//! Looks ahead in a recording: which tasks wait at a moment follows from what is picked later.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Read;

use ekiden::TaskId;
use ekiden_host::abi::{Call, Message, RawToken};
use ekiden_recording::{BEFORE_MARKS, Entry, Instance, Item, Recorded, RecordingError, RecordingReader};

/// How many calls are looked at. A task that waits for longer is not found.
const CALLS: usize = 50_000;

/// A recording of which the next calls can be looked at before they are taken.
pub(crate) struct Ahead<R> {
    reader: RecordingReader<R>,
    next: VecDeque<Result<Recorded, RecordingError>>,
}

/// The tasks at a moment, as the calls after it tell.
pub(crate) struct Tasks {
    /// The tokens that the policy has, in the order in which it will give them back.
    pub(crate) waiting: Vec<RawToken>,
    /// What the first call about each task says.
    pub(crate) first: HashMap<TaskId, Message>,
    /// Tasks that do not wait and are not new, in the order in which they are heard of.
    pub(crate) others: Vec<TaskId>,
}

impl<R: Read> Ahead<R> {
    pub(crate) fn new(reader: RecordingReader<R>) -> Self {
        Self { reader, next: VecDeque::new() }
    }

    /// The instance of this number, whose mark was taken already, if it is known.
    pub(crate) fn instance(&self, number: u64) -> Option<&Instance> {
        self.reader.instance(number)
    }

    /// The one to which the calls before the first mark belong, if it is known.
    pub(crate) fn before_marks(&mut self) -> Option<&Instance> {
        if self.next.is_empty() {
            self.next.extend(self.reader.next());
        }
        self.reader.instance(BEFORE_MARKS)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> Option<Result<Recorded, RecordingError>> {
        if self.next.is_empty() {
            return self.reader.next();
        }
        self.next.pop_front()
    }

    /// The tasks at the moment before the call `now`, which was taken already.
    pub(crate) fn tasks(&mut self, now: &Recorded) -> Tasks {
        while self.next.len() < CALLS {
            match self.reader.next() {
                Some(next) => self.next.push_back(next),
                None => break,
            }
        }
        let mut tasks = Tasks { waiting: Vec::new(), first: HashMap::new(), others: Vec::new() };
        // Tasks of which it is known by now whether they waited.
        let mut known: HashSet<TaskId> = HashSet::new();
        for next in std::iter::once(now).chain(self.next.iter().filter_map(|next| next.as_ref().ok())) {
            let Item::Entry(Entry::Call(call)) = &next.item else {
                // From here on others are heard of.
                if matches!(next.item, Item::Gap { .. } | Item::Torn) {
                    break;
                }
                continue;
            };
            let message = &call.message;
            if !message.task.is_none() {
                tasks.first.entry(message.task).or_insert(*message);
            }
            let gives_back = message.call == Call::TaskDeparted as u32 || message.call == Call::MigrateTaskRq as u32;
            let given = call.reply.map_or(RawToken::NONE, |reply| reply.token);
            if !given.is_none() && known.insert(given.task) {
                tasks.waiting.push(given);
            }
            let is_news = message.token_serial != 0 && known.insert(message.task);
            if is_news && !gives_back && message.call != Call::TaskNew as u32 {
                tasks.others.push(message.task);
            }
        }
        tasks
    }
}
