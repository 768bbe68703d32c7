//! Schedulers that are not ours and ask why a policy is gone, with room of all sizes for the answer.

use std::{mem::MaybeUninit, path::Path};

use anyhow::{Context, Result};
use ekiden::Call;
use ekiden_loader::{Hint, Session, Status};
use libbpf_rs::{
    PrintLevel, set_print,
    skel::{OpenSkel, SkelBuilder},
};
use serde::Serialize;
use skel::TextsSkelBuilder;

use crate::{
    guest_tests::config,
    kfunc_caller::{keep, said},
};

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/texts.skel.rs"));
}

/// As in `texts.bpf.c`: where the text is to be in its memory, and the room that it is said to have there.
const BEFORE: usize = 256;
const SIZES: [usize; 4] = [0, 1, 8, 768];

/// The bytes before the call.
const FILLED: i8 = -86;

#[derive(Serialize)]
struct TextsReport {
    /// The reason, as the status has it.
    reason: String,
    /// For each size of the room the length that was returned, and the text.
    texts: Vec<(i32, String)>,
    /// Bytes that were changed outside of the room.
    outside: usize,
    /// What the verifier said where the room may be larger than the memory.
    greedy_refused: Option<String>,
}

/// The text in the room up to its end, and whether it ends.
fn text(room: &[i8]) -> String {
    let bytes: Vec<u8> = room.iter().map(|byte| *byte as u8).collect();
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => String::from_utf8_lossy(&bytes[..end]).into_owned(),
        None => "without an end".to_owned(),
    }
}

pub(crate) fn texts(modules: &Path) -> Result<()> {
    let mut config = config(modules, "faulty");
    config.params = format!("call={} after=1", Call::ParseHint as u32);
    // Not attached, as there can be one scheduler only.
    let control = Session::ready_only(&config)?;
    // It panics.
    let _ = control.hint(None, Hint::Now(&[0; 8]));
    let reason = Status::read()?.and_then(|status| status.fault).context("it has not gone wrong")?;

    set_print(Some((PrintLevel::Info, keep)));
    let mut object = MaybeUninit::uninit();
    let mut open = TextsSkelBuilder::default().open(&mut object)?;
    open.maps.greedy.set_autocreate(false)?;
    open.progs.greedy_init.set_autoload(false);
    let mut skel = open.load()?;
    let memory = skel.maps.bss_data.as_mut().context("no memory of the program")?;
    memory.rooms.iter_mut().for_each(|room| room.fill(FILLED));
    // The kernel says that this went well on some versions, as the scheduler was called.
    drop(skel.maps.texts.attach_struct_ops());
    let memory = skel.maps.bss_data.as_ref().context("no memory of the program")?;
    let rooms = memory.rooms.iter().zip(SIZES);
    let is_changed = |byte: &&i8| **byte != FILLED;
    let outside = rooms
        .clone()
        .map(|(room, size)| room[..BEFORE].iter().chain(&room[BEFORE + size..]).filter(is_changed).count())
        .sum();
    let texts = rooms.map(|(room, size)| text(&room[BEFORE..BEFORE + size]));
    let texts = memory.lengths.iter().copied().zip(texts).collect();

    let mut object = MaybeUninit::uninit();
    let mut open = TextsSkelBuilder::default().open(&mut object)?;
    open.maps.texts.set_autocreate(false)?;
    open.progs.texts_init.set_autoload(false);
    let greedy_refused = open.load().err().map(|error| format!("{error:#}\n{}", said()));
    println!("{}", serde_json::to_string(&TextsReport { reason, texts, outside, greedy_refused })?);
    Ok(())
}
