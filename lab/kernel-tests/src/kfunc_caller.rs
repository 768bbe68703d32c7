//! A BPF program that is no scheduler and calls what `ekiden.ko` offers to its own.

use std::{
    mem::MaybeUninit,
    path::Path,
    sync::{Mutex, PoisonError},
};

use anyhow::Result;
use ekiden_loader::Session;
use libbpf_rs::{
    PrintLevel, set_print,
    skel::{OpenSkel, SkelBuilder},
};
use serde::Serialize;
use skel::KfuncCallerSkelBuilder;

use crate::guest_tests::config;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/kfunc_caller.skel.rs"));
}

#[derive(Serialize)]
struct KfuncCallerReport {
    /// What libbpf and the verifier said of the congestion control that calls a kfunc; nothing where it was loaded.
    refused: Option<String>,
    /// What libbpf and the verifier said of the one that calls none.
    ordinary_refused: Option<String>,
    still_running: bool,
}

static SAID: Mutex<String> = Mutex::new(String::new());

/// Keeps what libbpf says.
pub(crate) fn keep(_: PrintLevel, text: String) {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
}

/// The text that was kept.
pub(crate) fn said() -> String {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Loads one of the two; why that failed, if it did.
fn refusal(calls_kfunc: bool) -> Result<Option<String>> {
    let mut object = MaybeUninit::uninit();
    let mut open = KfuncCallerSkelBuilder::default().open(&mut object)?;
    open.maps.calls_kfunc.set_autocreate(calls_kfunc)?;
    open.maps.ordinary.set_autocreate(!calls_kfunc)?;
    open.progs.calls_kfunc_ssthresh.set_autoload(calls_kfunc);
    open.progs.ordinary_ssthresh.set_autoload(!calls_kfunc);
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
    Ok(open.load().err().map(|error| format!("{error:#}\n{}", said())))
}

pub(crate) fn kfunc_caller(modules: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "wfq"))?;
    set_print(Some((PrintLevel::Info, keep)));
    let (refused, ordinary_refused) = (refusal(true)?, refusal(false)?);
    let report = KfuncCallerReport { refused, ordinary_refused, still_running: session.is_running() };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
