//! What `/dev/ekiden` says when it is read.

use core::fmt::Write;
use core::slice;

use ekiden::CpuId;
use ekiden_engine::Totals;
use ekiden_host::{Figure, Value};

use crate::engine;

/// Room for all figures that a policy can have: `EKIDEN_FIGURES_WORDS`.
const FIGURES_WORDS: usize = 1024;

/// Writes what the engine says of itself as JSON members into `buffer`, or, if `policy_slot` is not 0, of the policy in the policy slot of that
/// number, counted from 1. Returns the length.
///
/// # Safety
///
/// `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_status(buffer: *mut u8, len: usize, policy_slot: u64) -> i64 {
    // SAFETY: the buffer has `len` bytes, which are the page of one reader of the device.
    let mut writer = Writer { room: unsafe { slice::from_raw_parts_mut(buffer, len) }, used: 0 };
    let Some(engine) = engine() else { return 0 };
    let (tasks, contract_violations, last_contract_violation, fault, totals);
    if policy_slot == 0 {
        let table = engine.tasks();
        (tasks, fault, totals) = (table.len(), engine.fault(), engine.totals());
        (contract_violations, last_contract_violation) = engine.contract_violations();
        let groups = engine.groups();
        let _ = write!(writer, r#","capacity":{},"throttled":{}"#, table.capacity(), groups.throttled());
        let _ = write!(writer, r#","beyond":{}"#, engine.beyond());
        let _ = write!(writer, r#","groups":{},"groups_without_room":{}"#, groups.len(), groups.overflows());
    } else {
        let Some(view) = engine.policy_slots().find(|view| view.policy_slot as u64 + 1 == policy_slot) else {
            return 0;
        };
        let (alive, default, checks) = (view.is_alive, view.is_default, view.checks.name());
        let _ = write!(writer, r#","alive":{alive},"default":{default},"checks":"{checks}""#);
        if let Some(unexpected_transition) = view.last_unexpected_transition {
            let _ = write!(writer, r#","last_unexpected_transition":"{unexpected_transition}""#);
        }
        if !view.cpus.is_empty() {
            let _ = write!(writer, r#","cpus":"{}","strict":{}"#, view.cpus, view.share.is_strict);
        }
        if view.share.weight != 0 {
            let _ = write!(writer, r#","weight":{}"#, view.share.weight);
        }
        (tasks, contract_violations, last_contract_violation) =
            (view.tasks, view.contract_violations, view.last_contract_violation);
        (fault, totals) = (view.fault, view.totals);
    }
    let Totals { picks, idles, migrations, refusals, unexpected_transitions, slowed, turns, ticks } = totals;
    let _ = write!(
        writer,
        r#","tasks":{tasks},"picks":{picks},"idles":{idles},"migrations":{migrations},"refusals":{refusals},"unexpected_transitions":{unexpected_transitions},"slowed":{slowed},"turns":{turns},"ticks":{ticks},"contract_violations":{contract_violations}"#
    );
    if let Some(contract_violation) = last_contract_violation {
        let _ = write!(writer, r#","last_contract_violation":"{contract_violation}""#);
    }
    if let Some(fault) = fault {
        let _ = write!(writer, r#","engine_fault":"{fault}""#);
    }
    writer.used as i64
}

/// Writes what a policy counts for people as a JSON member into `buffer`. Returns the length.
///
/// # Safety
///
/// `buffer` has room for `len` bytes, `description` is as long as is said, and there are [`FIGURES_WORDS`] words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_put_figures(
    buffer: *mut u8,
    len: usize,
    description: *const u8,
    described: usize,
    words: *const u64,
) -> i64 {
    // SAFETY: `buffer` and `description` are as long as is said, and the caller, figures.c, has room for all words of a policy.
    let (room, description, words) = unsafe {
        (
            slice::from_raw_parts_mut(buffer, len),
            slice::from_raw_parts(description, described),
            slice::from_raw_parts(words, FIGURES_WORDS),
        )
    };
    let mut writer = Writer { room, used: 0 };
    let (mut comma, mut end) = ("", 0);
    let _ = write!(writer, r#","figures":["#);
    for figure in Figure::read(description, words) {
        let _ = write!(writer, r#"{comma}{{"name":"{}","help":""#, figure.name);
        for letter in figure.help.chars() {
            let _ =
                if matches!(letter, '"' | '\\') { write!(writer, "\\{letter}") } else { write!(writer, "{letter}") };
        }
        let _ = match figure.value {
            Value::Count(count) => write!(writer, r#"","count":{count}}}"#),
            Value::Buckets(buckets) => {
                let _ = write!(writer, r#"","buckets":["#);
                for (place, (least, count)) in buckets.iter().enumerate() {
                    let _ = write!(writer, "{}[{least},{count}]", if place == 0 { "" } else { "," });
                }
                write!(writer, "]}}")
            }
        };
        // One that does not fit is left out.
        if writer.used + 1 >= writer.room.len() {
            break;
        }
        (comma, end) = (",", writer.used);
    }
    if end == 0 {
        return 0;
    }
    writer.room[end] = b']';
    end as i64 + 1
}

/// Fills in what a CPU has counted for the policy in a policy slot. False if there is no such policy or CPU.
///
/// # Safety
///
/// `counters` has room for six.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_counters(policy_slot: u64, cpu: CpuId, counters: *mut u64) -> bool {
    // SAFETY: there is room for six counters, one after the other, which is what an array of them is.
    let counters = unsafe { &mut *counters.cast::<[u64; 8]>() };
    let Some(totals) = engine().and_then(|engine| engine.counted(policy_slot as usize, cpu)) else { return false };
    let Totals { picks, idles, migrations, refusals, unexpected_transitions, slowed, turns, ticks } = totals;
    *counters = [picks, idles, migrations, refusals, unexpected_transitions, slowed, turns, ticks];
    true
}

/// Writes to a buffer and cuts what does not fit.
struct Writer<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl Write for Writer<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let taken = text.len().min(self.room.len() - self.used);
        self.room[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        Ok(())
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
