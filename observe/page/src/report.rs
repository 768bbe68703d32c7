//! One file that shows a trace, without a network and without this program.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fmt::Write as _,
    io::{self, Write as _},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ekiden_check::{Verdict, Violation};
use ekiden_trace::Header;
use flate2::{Compression, write::DeflateEncoder};

use crate::{Model, Notes, PAGE, PLACE, Summary, tile::TileId};

/// A report is not longer than this, in bytes.
pub const REPORT_BYTES_MAX: usize = 10_000_000;

/// How many depths earlier tiles come that hold a violation, or the beginning, than others of their depth.
const PREFERRED_DEPTHS: u32 = 8;

/// A page that stands alone. If all of the trace takes more than `bytes_max`, it has all of it coarsely, and exactly
/// what is around violations and at the beginning; the page then says so.
///
/// # Errors
/// When compressing fails, which takes a lack of memory.
pub fn report(
    header: &Header,
    model: &Model,
    verdict: &Verdict,
    notes: &Notes,
    bytes_max: usize,
) -> io::Result<String> {
    let summary = block("summary", &Summary::of(header, model, Some(verdict), notes).to_json())?;
    let mut bytes = PAGE.len() + summary.len();
    let mut blocks = summary;
    let mut wanted = BinaryHeap::from([Reverse((0, TileId::ROOT))]);
    let mut is_whole = true;
    while let Some(Reverse((_, id))) = wanted.pop() {
        let Some(tile) = model.tile(id) else { continue };
        let block = block(&format!("{}-{}", id.depth, id.index), &tile)?;
        // The picture as a whole is there in any case.
        if bytes + block.len() > bytes_max && id != TileId::ROOT {
            is_whole = false;
            continue;
        }
        bytes += block.len();
        blocks += &block;
        if model.is_exact(id) == Some(false) {
            wanted.extend(id.halves().map(|half| Reverse((rank(model, &verdict.violations, half), half))));
        }
    }
    let note = format!("<script>window.ekidenPartial={}</script>", !is_whole);
    Ok(PAGE.replacen(PLACE, &(note + &blocks), 1))
}

/// Tiles come in this order.
fn rank(model: &Model, violations: &[Violation], id: TileId) -> u32 {
    let span_ns = (model.division().bin_ns >> id.depth) * crate::tile::BINS as u64;
    let (begin_ns, end_ns) = (id.index * span_ns, (id.index + 1) * span_ns);
    let begins = |violation: &Violation| (begin_ns..end_ns).contains(&violation.since_ns);
    if id.index == 0 || violations.iter().any(begins) { id.depth.saturating_sub(PREFERRED_DEPTHS) } else { id.depth }
}

/// A piece of data as the page finds it.
fn block(name: &str, bytes: &[u8]) -> io::Result<String> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(bytes)?;
    let text = BASE64_STANDARD.encode(encoder.finish()?);
    let mut block = String::with_capacity(text.len() + 80);
    writeln!(block, "<script type=\"application/octet-stream\" id=\"ekiden-{name}\">{text}</script>")
        .expect("a string takes everything");
    Ok(block)
}
