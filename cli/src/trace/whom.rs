//! Which tasks a command is asked about, by the names that a trace has.

use ekiden_loader::Whom;
use ekiden_trace::Machine;

/// The kernel keeps this many bytes of a name.
const NAME_LEN: usize = 15;

/// Whether a command that is asked about `whom` is asked about this task.
pub(crate) fn is_wanted(whom: &Whom, machine: &Machine, pid: u32) -> bool {
    let is_named = |wanted: &String| start(&machine.name(pid)) == start(wanted);
    whom.pid.is_none_or(|wanted| wanted == pid) && whom.name.as_ref().is_none_or(is_named)
}

fn start(name: &str) -> &[u8] {
    &name.as_bytes()[..name.len().min(NAME_LEN)]
}
