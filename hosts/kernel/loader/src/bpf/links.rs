//! The links that keep the scheduler in the kernel, found by a loader that joins it.

use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::{
    libbpf_sys::bpf_link_get_fd_by_id,
    query::{LinkInfoIter, LinkTypeInfo, MapInfoIter, ProgInfoIter},
};

use crate::error::{LoadError, Result};

/// The link of the operations, and that of the program for timers. The scheduler stays as long as a process holds them.
pub(crate) fn of_scheduler() -> Result<(OwnedFd, OwnedFd)> {
    let maps: Vec<u32> = MapInfoIter::default().filter(|map| map.name == "ekiden_ops").map(|map| map.id).collect();
    let programs: Vec<u32> =
        ProgInfoIter::default().filter(|program| program.name == "ekiden_on_timer").map(|program| program.id).collect();
    let (mut operations, mut timer) = (None, None);
    for link in LinkInfoIter::default() {
        match link.info {
            LinkTypeInfo::StructOps(info) if maps.contains(&info.map_id) => operations = Some(link.id),
            LinkTypeInfo::Tracing(_) if programs.contains(&link.prog_id) => timer = Some(link.id),
            _ => {}
        }
    }
    Ok((hold(operations)?, hold(timer)?))
}

fn hold(link: Option<u32>) -> Result<OwnedFd> {
    let gone = || LoadError::CannotJoin("their BPF links are not found; stop them, and start this one first".into());
    // SAFETY: it takes the number of a link, and gets at no memory of ours.
    let fd = unsafe { bpf_link_get_fd_by_id(link.ok_or_else(gone)?) };
    if fd < 0 {
        return Err(gone());
    }
    // SAFETY: a descriptor that has just been opened, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
