//! A scheduler that is not ours and makes up a task.

use std::{mem::MaybeUninit, path::Path};

use anyhow::{Context, Result};
use ekiden_loader::Session;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use serde::Serialize;
use skel::ImpostorSkelBuilder;

use crate::guest_tests::config;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/impostor.skel.rs"));
}

#[derive(Serialize)]
struct ImpostorReport {
    /// What the engine said to a task that was made up, by either function that takes events, and to a real one.
    statuses: [i32; 3],
    tasks: [u64; 3],
}

pub(crate) fn impostor(modules: &Path) -> Result<()> {
    let _engine = Session::ready_only(&config(modules, "wfq"))?;
    let mut object = MaybeUninit::uninit();
    let mut skel = ImpostorSkelBuilder::default().open(&mut object)?.load()?;
    // The kernel says that this went well on some versions, as the scheduler was called.
    drop(skel.maps.impostor.attach_struct_ops());
    let found = skel.maps.bss_data.as_ref().context("no memory of the program")?;
    println!("{}", serde_json::to_string(&ImpostorReport { statuses: found.statuses, tasks: found.tasks })?);
    Ok(())
}
