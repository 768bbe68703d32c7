//! One call into the policy, in the call log or not: it is on the path of every task switch.

use core::{ffi::c_void, mem::MaybeUninit, slice};

use ekiden::Scheduler;
use ekiden_host::Adapter;
use ekiden_host::abi::{Message, Reply};

use crate::{call_log, has_no_lock};

/// # Safety
///
/// `instance` comes from `create`, and the other pointers are good for the call.
pub(crate) unsafe extern "C" fn deliver<S: Scheduler>(
    reply: &mut MaybeUninit<Reply>,
    instance: *mut c_void,
    message: *const Message,
    payload: *const u8,
    payload_len: usize,
) {
    // SAFETY: `instance` comes from `create` or `take`. CPUs share it, as an `Adapter` is Sync; it is taken away only between calls.
    let adapter = unsafe { &*instance.cast::<Adapter<S>>() };
    // SAFETY: message and payload are good for the call, the payload for its length.
    let (message, payload) = unsafe { (&*message, slice::from_raw_parts(payload, payload_len)) };
    // Each by itself, and last: what either has to save and restore, it saves once.
    match call_log::here() {
        None => unrecorded(reply, adapter, message, payload),
        Some(place) => recorded(reply, adapter, message, payload, place),
    }
}

#[inline(never)]
fn unrecorded<S: Scheduler>(reply: &mut MaybeUninit<Reply>, adapter: &Adapter<S>, message: &Message, payload: &[u8]) {
    adapter.answer(message, payload, reply);
    has_no_lock();
}

/// Delivers a call while the call log runs.
#[inline(never)]
fn recorded<S: Scheduler>(
    reply: &mut MaybeUninit<Reply>,
    adapter: &Adapter<S>,
    message: &Message,
    payload: &[u8],
    place: call_log::Here,
) {
    place.begin(message, payload);
    place.end(adapter.answer(message, payload, reply));
    has_no_lock();
}
