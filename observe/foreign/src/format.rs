//! Where things stand in events: what the kernel says of them in files called `format`, which recordings hold copies of.

use std::collections::HashMap;

use crate::{
    ForeignError,
    bytes::number,
    event::{Event, Leaves, Name, Task},
};

/// States in which a task does not go on, if the description does not list them.
const NOT_READY: u64 = 0xff;
/// The states of them that it does not come back from.
const DEAD: u64 = 0x30;

/// Where a number or a text stands in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
    /// What stands there says where the text is.
    is_location: bool,
}

/// One such file.
struct Format {
    id: u32,
    name: String,
    fields: HashMap<String, Field>,
    /// The states of tasks, with the letters that they are printed as.
    states: Vec<(u64, String)>,
}

/// Where a task stands in an event.
#[derive(Clone, Copy)]
struct TaskFields {
    pid: Field,
    name: Field,
    prio: Option<Field>,
}

#[derive(Clone, Copy)]
enum Decoder {
    Switch { prev: TaskFields, state: Field, not_ready: u64, dead: u64, next: TaskFields },
    Waking { task: TaskFields, target: Field },
    Wakeup { task: TaskFields, target: Field, is_new: bool },
    Migrate { task: TaskFields, from: Field, to: Field },
    Fork { parent: Field, child: Field, name: Field },
    Rename { pid: Field, name: Field },
    Idle { state: Field },
    Hotplug { cpu: Field, target: Field },
}

/// All events that are of use.
pub(crate) struct Formats {
    is_big: bool,
    /// What stands in every event: its number, and whose time it came on.
    id: Field,
    current: Option<Field>,
    decoders: HashMap<u32, Decoder>,
    pub(crate) has_wakeup: bool,
    pub(crate) has_waking: bool,
}

impl Formats {
    /// Reads the format files with the names of their systems; those of no use are passed over.
    pub(crate) fn new<'a>(
        files: impl Iterator<Item = (&'a str, &'a [u8])>,
        is_big: bool,
    ) -> Result<Self, ForeignError> {
        let mut formats = Self {
            is_big,
            id: Field { offset: 0, size: 2, is_location: false },
            current: None,
            decoders: HashMap::new(),
            has_wakeup: false,
            has_waking: false,
        };
        let mut has_switch = false;
        let of_use = |system: &str| matches!(system, "sched" | "task" | "power" | "cpuhp");
        for (_, file) in files.filter(|(system, _)| of_use(system)) {
            let Some(format) = Format::parse(&String::from_utf8_lossy(file)) else { continue };
            let Some(decoder) = format.decoder()? else { continue };
            formats.has_waking |= matches!(decoder, Decoder::Waking { .. });
            formats.has_wakeup |= matches!(decoder, Decoder::Wakeup { is_new: false, .. });
            has_switch |= matches!(decoder, Decoder::Switch { .. });
            // They are the same in all.
            formats.id = format.field("common_type")?;
            formats.current = format.fields.get("common_pid").copied();
            formats.decoders.insert(format.id, decoder);
        }
        if !has_switch {
            let why =
                "it has no sched_switch events; record them, as `trace-cmd record -e sched` and `perf sched record` do";
            return Err(ForeignError::Unusable(why.into()));
        }
        Ok(formats)
    }

    /// What an event says; nothing if it is of no use, and no answer if it is too short for what it is.
    pub(crate) fn decode(&self, data: &[u8]) -> Option<Option<Event>> {
        let Some(decoder) = self.decoders.get(&(self.number(data, self.id)? as u32)) else { return Some(None) };
        let pid = |field| Some(self.number(data, field)? as u32);
        let by = || self.current.map_or(Some(0), pid);
        Some(Some(match *decoder {
            Decoder::Switch { prev, state, not_ready, dead, next } => {
                let state = self.number(data, state)?;
                let leaves = match state {
                    _ if state & dead != 0 => Leaves::Dead,
                    _ if state & not_ready != 0 => Leaves::Asleep,
                    _ => Leaves::Ready,
                };
                Event::Switch { prev: self.task(data, prev)?, leaves, next: self.task(data, next)? }
            }
            Decoder::Waking { task, target } => {
                Event::Waking { task: self.task(data, task)?, target: pid(target)?, by: by()? }
            }
            Decoder::Wakeup { task, target, is_new } => {
                Event::Wakeup { task: self.task(data, task)?, target: pid(target)?, by: by()?, is_new }
            }
            Decoder::Migrate { task, from, to } => {
                Event::Migrate { task: self.task(data, task)?, from: pid(from)?, to: pid(to)? }
            }
            Decoder::Fork { parent, child, name } => {
                Event::Fork { parent: pid(parent)?, child: pid(child)?, name: self.name(data, name)? }
            }
            Decoder::Rename { pid: of, name } => Event::Rename { pid: pid(of)?, name: self.name(data, name)? },
            // All ones is that it is idle no more, of which a switch tells.
            Decoder::Idle { state } if pid(state)? == u32::MAX => return Some(None),
            Decoder::Idle { .. } => Event::Idle,
            Decoder::Hotplug { cpu, target } => Event::Hotplug { target: pid(cpu)?, is_online: pid(target)? != 0 },
        }))
    }

    fn number(&self, data: &[u8], field: Field) -> Option<u64> {
        Some(number(data.get(field.offset..field.offset + field.size)?, self.is_big))
    }

    fn task(&self, data: &[u8], fields: TaskFields) -> Option<Task> {
        let prio = fields.prio.map(|prio| self.number(data, prio).map(|prio| prio as i32));
        Some(Task {
            pid: self.number(data, fields.pid)? as u32,
            name: self.name(data, fields.name)?,
            prio: match prio {
                Some(prio) => Some(prio?),
                None => None,
            },
        })
    }

    fn name(&self, data: &[u8], field: Field) -> Option<Name> {
        let (from, len) = if field.is_location {
            let location = self.number(data, field)? as usize;
            (location & 0xffff, location >> 16)
        } else {
            (field.offset, field.size)
        };
        let text = data.get(from..from + len)?;
        let mut name = Name::default();
        for (to, byte) in name.iter_mut().zip(text.iter().take_while(|byte| **byte != 0)) {
            *to = *byte;
        }
        Some(name)
    }
}

impl Format {
    fn parse(text: &str) -> Option<Self> {
        let mut format = Self { id: 0, name: String::new(), fields: HashMap::new(), states: Vec::new() };
        for line in text.lines() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("name:") {
                format.name = name.trim().into();
            } else if let Some(id) = line.strip_prefix("ID:") {
                format.id = id.trim().parse().ok()?;
            } else if let Some(field) = line.strip_prefix("field:") {
                let (name, field) = parse_field(field)?;
                format.fields.insert(name, field);
            } else if line.starts_with("print fmt:") {
                format.states = parse_states(line);
            }
        }
        Some(format)
    }

    fn field(&self, name: &str) -> Result<Field, ForeignError> {
        let why = || format!("its events {} have no field {name}; record it with a kernel since 4.14", self.name);
        self.fields.get(name).copied().ok_or_else(|| ForeignError::Unusable(why()))
    }

    fn task(&self, prefix: &str) -> Result<TaskFields, ForeignError> {
        let field = |name: &str| format!("{prefix}{name}");
        Ok(TaskFields {
            pid: self.field(&field("pid"))?,
            name: self.field(&field("comm"))?,
            prio: self.fields.get(&field("prio")).copied(),
        })
    }

    /// How to read such events; nothing if they are of no use.
    fn decoder(&self) -> Result<Option<Decoder>, ForeignError> {
        let wakeup = |is_new| -> Result<Decoder, ForeignError> {
            Ok(Decoder::Wakeup { task: self.task("")?, target: self.field("target_cpu")?, is_new })
        };
        Ok(Some(match self.name.as_str() {
            "sched_switch" => Decoder::Switch {
                prev: self.task("prev_")?,
                state: self.field("prev_state")?,
                not_ready: self.mask(NOT_READY, |_| true),
                dead: self.mask(DEAD, |letter| letter.eq_ignore_ascii_case("x") || letter == "Z"),
                next: self.task("next_")?,
            },
            "sched_waking" => Decoder::Waking { task: self.task("")?, target: self.field("target_cpu")? },
            "sched_wakeup" => wakeup(false)?,
            "sched_wakeup_new" => wakeup(true)?,
            "sched_migrate_task" => {
                Decoder::Migrate { task: self.task("")?, from: self.field("orig_cpu")?, to: self.field("dest_cpu")? }
            }
            "sched_process_fork" => Decoder::Fork {
                parent: self.field("parent_pid")?,
                child: self.field("child_pid")?,
                name: self.field("child_comm")?,
            },
            "task_rename" => Decoder::Rename { pid: self.field("pid")?, name: self.field("newcomm")? },
            "cpu_idle" => Decoder::Idle { state: self.field("state")? },
            "cpuhp_enter" => Decoder::Hotplug { cpu: self.field("cpu")?, target: self.field("target")? },
            _ => return Ok(None),
        }))
    }

    /// States whose letters are such ones.
    fn mask(&self, otherwise: u64, is_such: impl Fn(&str) -> bool) -> u64 {
        let such = self.states.iter().filter(|(_, letter)| is_such(letter));
        if self.states.is_empty() { otherwise } else { such.fold(0, |mask, (bits, _)| mask | bits) }
    }
}

/// Reads `pid_t prev_pid; offset:24; size:4; signed:1;`. `None` if it is nothing like that.
fn parse_field(text: &str) -> Option<(String, Field)> {
    let mut parts = text.split(';').map(str::trim);
    let declaration = parts.next()?;
    let mut field = Field { offset: 0, size: 0, is_location: declaration.starts_with("__data_loc") };
    for part in parts {
        // Events are at most as long as a page, and those are at most 64 KiB.
        match part.split_once(':') {
            Some(("offset", offset)) => field.offset = offset.parse::<u16>().ok()?.into(),
            Some(("size", size)) => field.size = size.parse::<u16>().ok()?.into(),
            _ => {}
        }
    }
    let name = declaration.split('[').next()?.rsplit([' ', '*']).next()?;
    // `char[] child_comm` has its brackets before the name.
    let name = if declaration.ends_with(']') { name } else { declaration.rsplit([' ', '*']).next()? };
    Some((name.into(), field))
}

/// Reads the pairs `{ 0x00000001, "S" }` of a description of how to print.
fn parse_states(text: &str) -> Vec<(u64, String)> {
    let pairs = text.split('{').skip(1).filter_map(|pair| pair.split_once('}')?.0.split_once(','));
    let parse = |(bits, letter): (&str, &str)| {
        let bits = bits.trim();
        let bits = bits.strip_prefix("0x").map_or_else(|| bits.parse(), |hex| u64::from_str_radix(hex, 16)).ok()?;
        Some((bits, letter.trim().trim_matches('"').to_owned()))
    };
    pairs.filter_map(parse).collect()
}

/// The fields of a page of the kernel's ring buffer, which is described likewise.
pub(crate) struct PageFormat {
    pub(crate) commit_at: usize,
    pub(crate) commit_size: usize,
    pub(crate) data_at: usize,
}

impl PageFormat {
    /// Reads the file `header_page`.
    pub(crate) fn parse(file: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(file);
        let fields: HashMap<_, _> =
            text.lines().filter_map(|line| parse_field(line.trim().strip_prefix("field:")?)).collect();
        let (commit, data) = (fields.get("commit")?, fields.get("data")?);
        let is_sound = matches!(commit.size, 4 | 8) && data.offset >= commit.offset + commit.size;
        is_sound.then_some(Self { commit_at: commit.offset, commit_size: commit.size, data_at: data.offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_names_however_they_are_declared() {
        let field = |offset, size, is_location| Field { offset, size, is_location };
        for (text, name, expected) in [
            ("pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;", "prev_pid", field(24, 4, false)),
            ("char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;", "prev_comm", field(8, 16, false)),
            ("char prev_comm[TASK_COMM_LEN];\toffset:8;\tsize:16;", "prev_comm", field(8, 16, false)),
            ("__data_loc char[] child_comm;\toffset:16;\tsize:4;\tsigned:0;", "child_comm", field(16, 4, true)),
            ("void * fun;\toffset:24;\tsize:8;\tsigned:0;", "fun", field(24, 8, false)),
            ("unsigned long *fun;\toffset:24;\tsize:8;", "fun", field(24, 8, false)),
        ] {
            assert_eq!(parse_field(text), Some((name.into(), expected)), "{text}");
        }
        assert_eq!(parse_field("pid_t pid; offset:70000; size:4"), None);
    }

    #[test]
    fn states_are_those_that_the_description_lists() {
        let text = r#"print fmt: "%s", __print_flags(REC->prev_state & 255, "|", { 1, "S" }, { 0x10, "X" }, { 32, "Z" }) : "R""#;
        assert_eq!(parse_states(text), [(1, "S".into()), (16, "X".into()), (32, "Z".into())]);
    }
}
