//! What `/dev/ekiden` says when it is read.

use core::fmt::Write;
use core::slice;

use crate::engine;

/// Writes the engine's part of the status as JSON members into `buffer`, and returns its length.
///
/// # Safety
///
/// `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ekiden_rs_status(buffer: *mut u8, len: usize) -> i64 {
    // SAFETY: the caller's promise.
    let mut writer = Writer { room: unsafe { slice::from_raw_parts_mut(buffer, len) }, used: 0 };
    let Some(engine) = engine() else { return 0 };
    let totals = engine.totals();
    let (mistakes, last_mistake) = engine.mistakes();
    let _ = write!(
        writer,
        r#","tasks":{},"capacity":{},"picks":{},"idles":{},"migrations":{},"refusals":{},"surprises":{},"mistakes":{mistakes}"#,
        engine.tasks().len(),
        engine.tasks().capacity(),
        totals.picks,
        totals.idles,
        totals.migrations,
        totals.refusals,
        totals.surprises,
    );
    if let Some(mistake) = last_mistake {
        let _ = write!(writer, r#","last_mistake":"{mistake}""#);
    }
    if let Some(fault) = engine.fault() {
        let _ = write!(writer, r#","engine_fault":"{fault}""#);
    }
    writer.used as i64
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
