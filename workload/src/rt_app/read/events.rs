//! What rt-app's events mean: each becomes one step or a few.

use super::{Actor, Barrier, MEMORY_KEYS, Reader, Result, value::At};
use crate::rt_app::json::{Data, Entry, Value};
use crate::spec::{Step, TaskSpec, WaitMode};

/// Bytes that `mem` writes in a nanosecond. rt-app writes as fast as the machine does; some figure has to be taken.
const MEM_BYTES_PER_NS: u64 = 10;

/// What one call of `write` to /dev/null takes.
const WRITE_NS: u64 = 300;

/// Most steps that a load may have, forked tasks counted as often as they are named.
const STEPS_MAX: usize = 1_000_000;

/// Events, in the order in which rt-app looks for them: a key is the first that it begins with, so that `run0` and
/// `run_more` are `run`.
const EVENTS: [(&str, Event); 18] = [
    ("runtime", Event::RunFor),
    ("run", Event::Run),
    ("sleep", Event::Sleep),
    ("mem", Event::Mem),
    ("iorun", Event::IoRun),
    ("lock", Event::Lock),
    ("unlock", Event::Unlock),
    ("signal", Event::Signal),
    ("broad", Event::Broadcast),
    ("wait", Event::Wait),
    ("sync", Event::SignalAndWait),
    ("sig_and_wait", Event::SignalAndWait),
    ("barrier", Event::Barrier),
    ("timer", Event::Timer),
    ("resume", Event::Resume),
    ("suspend", Event::Suspend),
    ("yield", Event::Yield),
    ("fork", Event::Fork),
];

#[derive(Clone, Copy)]
enum Event {
    RunFor,
    Run,
    Sleep,
    Mem,
    IoRun,
    Lock,
    Unlock,
    Signal,
    Broadcast,
    Wait,
    SignalAndWait,
    Barrier,
    Timer,
    Resume,
    Suspend,
    Yield,
    Fork,
}

/// Whether a key is that of an event.
pub(super) fn is_event(key: &str) -> bool {
    event_of(key).is_some()
}

fn event_of(key: &str) -> Option<Event> {
    if MEMORY_KEYS.contains(&key) {
        return None;
    }
    EVENTS.iter().find(|(name, _)| key.starts_with(name)).map(|(_, event)| *event)
}

impl<'a> Reader<'a> {
    pub(super) fn events(&mut self, object: &At<'a>, actor: &mut Actor) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for entry in object.object()? {
            let Some(event) = event_of(&entry.key) else { continue };
            let at = object.under(&entry.key, &entry.value);
            let before = steps.len();
            self.event(event, entry, &at, actor, &mut steps)?;
            self.steps += steps.len() - before;
            if self.steps > STEPS_MAX {
                return at.fail(format!("more than {STEPS_MAX} events in all, forked tasks counted: take fewer"));
            }
        }
        Ok(steps)
    }

    fn event(
        &mut self,
        event: Event,
        entry: &Entry,
        at: &At<'a>,
        actor: &mut Actor,
        steps: &mut Vec<Step>,
    ) -> Result<()> {
        match event {
            Event::Run => steps.push(Step::Run { ns: at.us()? }),
            Event::RunFor => steps.push(Step::RunFor { ns: at.us()? }),
            Event::Sleep => steps.push(Step::Sleep { ns: at.us()? }),
            Event::Yield => steps.push(Step::Yield),
            Event::Mem => {
                steps.push(Step::Run { ns: at.count()? / MEM_BYTES_PER_NS });
                self.remark(entry, at, format!("taken as work of 1 ns for {MEM_BYTES_PER_NS} bytes"));
            }
            Event::IoRun => {
                if !self.to_dev_null {
                    return at.fail("how fast `io_device` is, is not known: use \"/dev/null\", or `sleep` here");
                }
                steps.push(Step::Run { ns: at.count()?.div_ceil(self.mem_buffer_bytes) * WRITE_NS });
                self.remark(entry, at, format!("taken as work of {WRITE_NS} ns for each write to /dev/null"));
            }
            Event::Lock => steps.push(self.lock(at.text()?)),
            Event::Unlock => steps.push(self.unlock(at.text()?)),
            Event::Signal => steps.push(Step::Signal { condition: self.conditions.of(at.text()?) }),
            Event::Broadcast => steps.push(Step::Broadcast { condition: self.conditions.of(at.text()?) }),
            Event::Wait => {
                let (condition, lock) = self.condition_and_mutex(at)?;
                steps.push(Step::Await { condition, lock: Some(lock) });
            }
            Event::SignalAndWait => {
                let (condition, lock) = self.condition_and_mutex(at)?;
                steps.extend([Step::Signal { condition }, Step::Await { condition, lock: Some(lock) }]);
            }
            Event::Suspend => {
                let name = match &at.value.data {
                    Data::Missing => "",
                    _ => at.text()?,
                };
                let name = if name.is_empty() { self.tasks[actor.index].0.clone() } else { name.to_owned() };
                let (condition, lock) = (self.conditions.of(&name), self.mutexes.of(&name));
                let wait = Step::Await { condition, lock: Some(lock) };
                steps.extend([self.lock(&name), wait, self.unlock(&name)]);
            }
            Event::Resume => {
                let name = at.text()?;
                let wake = Step::Broadcast { condition: self.conditions.of(name) };
                steps.extend([self.lock(name), wake, self.unlock(name)]);
            }
            Event::Barrier => steps.push(self.barrier(at, actor)?),
            Event::Timer => steps.extend(self.timer(at, actor)?),
            Event::Fork => steps.push(self.fork(at, actor)?),
        }
        Ok(())
    }

    fn lock(&mut self, name: &str) -> Step {
        Step::Lock { lock: self.mutexes.of(name), mode: WaitMode::Block }
    }

    fn unlock(&mut self, name: &str) -> Step {
        Step::Unlock { lock: self.mutexes.of(name) }
    }

    fn condition_and_mutex(&mut self, at: &At<'a>) -> Result<(u32, u32)> {
        let (mut condition, mut mutex) = ("unknown", "unknown");
        for (entry, at) in self.once_each(at, at.object()?) {
            match entry.key.as_str() {
                "ref" => condition = at.text()?,
                "mutex" => mutex = at.text()?,
                key => self.remark(entry, &at, format!("rt-app knows no `{key}` here, and neither does Ekiden")),
            }
        }
        Ok((self.conditions.of(condition), self.mutexes.of(mutex)))
    }

    fn barrier(&mut self, at: &At<'_>, actor: &Actor) -> Result<Step> {
        if !actor.above.is_empty() {
            return at.fail("forked tasks cannot meet at barriers, since nobody knows how many there will be");
        }
        let barrier = self.barrier_numbers.of(at.text()?);
        let named_by = actor.index;
        match self.barriers.get_mut(barrier as usize) {
            None => self.barriers.push(Barrier { parties: actor.instances, named_by }),
            Some(known) if known.named_by == named_by => {
                return at.fail("this task names the barrier before: each name stands for one place in a task");
            }
            Some(known) => *known = Barrier { parties: known.parties + actor.instances, named_by },
        }
        Ok(Step::Barrier { barrier, parties: 1, mode: WaitMode::Block })
    }

    pub(super) fn set_parties(&self, specs: &mut [TaskSpec]) {
        fn set(steps: &mut [Step], barriers: &[Barrier]) {
            for step in steps {
                match step {
                    Step::Barrier { barrier, parties, .. } => {
                        *parties = u32::try_from(barriers[*barrier as usize].parties).unwrap_or(u32::MAX);
                    }
                    Step::Fork { program: inner }
                    | Step::Repeat { steps: inner, .. }
                    | Step::Forever { steps: inner } => set(inner, barriers),
                    _ => {}
                }
            }
        }
        specs.iter_mut().for_each(|spec| set(&mut spec.program, &self.barriers));
    }

    /// Nothing for a period of 0, with which there is nothing to wait for.
    fn timer(&mut self, at: &At<'a>, actor: &mut Actor) -> Result<Option<Step>> {
        let (mut name, mut period) = ("unknown", None);
        for (entry, at) in self.once_each(at, at.object()?) {
            match entry.key.as_str() {
                "ref" => name = at.text()?,
                "period" => period = Some(at.us()?),
                "mode" => {
                    let mode = at.text()?;
                    if mode != "relative" && mode != "absolute" {
                        return at.fail(format!("`{mode}`: choose \"relative\" or \"absolute\""));
                    }
                }
                key => self.remark(entry, &at, format!("rt-app knows no `{key}` here, and neither does Ekiden")),
            }
        }
        let Some(period_ns) = period else { return at.fail("a timer needs a `period`, in microseconds") };
        if !name.starts_with("unique") {
            let user = *self.shared_timers.entry(name.to_owned()).or_insert(actor.index);
            if user != actor.index || actor.instances > 1 || !actor.above.is_empty() {
                return at.fail(format!(
                    "a timer that several tasks share is not modelled: call it `unique{name}`, so that each has its own"
                ));
            }
        }
        let timer = actor.timers.of(name);
        if timer >= crate::spec::TIMERS_MAX {
            return at.fail(format!("more than {} timers in one task", crate::spec::TIMERS_MAX));
        }
        let restart = !actor.absolute.iter().any(|other| other == name);
        Ok((period_ns > 0).then_some(Step::Timer { timer, period_ns, restart }))
    }

    fn fork(&mut self, at: &At<'a>, actor: &Actor) -> Result<Step> {
        let name = at.text()?;
        let Some(index) = self.tasks.iter().position(|(other, _)| other == name) else {
            return at.fail(format!("there is no task `{name}` to fork: name one of `tasks`"));
        };
        let mut above = actor.above.clone();
        above.push(actor.index);
        if above.contains(&index) {
            return at.fail(format!("`{name}` would fork itself without end"));
        }
        if above.len() > crate::spec::DEPTH_MAX {
            return at.fail(format!("forks nested deeper than {}: flatten them", crate::spec::DEPTH_MAX));
        }
        let parent = above[0];
        let (own, delay_ns, steps) = self.behaviour(index, 1, above)?;
        let of_parent = match self.tasks[parent].1.property("taskgroup")? {
            Some(at) => self.group(&at)?,
            None => None,
        };
        if own.group != of_parent {
            return at
                .fail(format!("`{name}` is in another `taskgroup` than the task that forks it: give both the same"));
        }
        // A forked thread is set up like any other, whatever its parent has become.
        let mut program = vec![Step::SetNice { nice: own.nice.unwrap_or(0) }, Step::SetAffinity { cpus: own.cpus }];
        if delay_ns > 0 {
            program.push(Step::Sleep { ns: delay_ns });
        }
        program.extend(steps);
        Ok(Step::Fork { program })
    }
}

/// The timers of a task of which any event says that they are absolute: rt-app keeps that with the timer.
pub(super) fn absolute_timers(task: &Value) -> Vec<String> {
    fn text<'a>(entries: &'a [Entry], key: &str) -> Option<&'a str> {
        match &entries.iter().find(|entry| entry.key == key)?.value.data {
            Data::Text(text) => Some(text),
            _ => None,
        }
    }
    fn visit(value: &Value, found: &mut Vec<String>) {
        let Data::Object(entries) = &value.data else { return };
        if text(entries, "mode") == Some("absolute") {
            found.push(text(entries, "ref").unwrap_or("unknown").to_owned());
        }
        entries.iter().for_each(|entry| visit(&entry.value, found));
    }
    let mut found = Vec::new();
    visit(task, &mut found);
    found
}
