//! The descriptions that stand at the beginning of a `trace.dat`, and likewise in a `perf.data`.

use crate::{
    ForeignError,
    bytes::Bytes,
    format::{Formats, PageFormat},
};

/// Takes the description of the ring buffer's pages off the front.
pub(crate) fn page_format(bytes: &mut Bytes<'_>) -> Option<PageFormat> {
    let mut file = |name: &str| {
        let found = bytes.take(name.len() as u64)?;
        let len = bytes.u64()?;
        (found == name.as_bytes()).then_some(bytes.take(len)?)
    };
    let page = file("header_page\0")?;
    file("header_event\0")?;
    PageFormat::parse(page)
}

/// Takes the descriptions of the tracer's own events off the front; none of them is of use.
pub(crate) fn skip_own_formats(bytes: &mut Bytes<'_>) -> Option<()> {
    for _ in 0..bytes.u32()? {
        let len = bytes.u64()?;
        bytes.take(len)?;
    }
    Some(())
}

/// Takes the descriptions of events off the front. No answer if they are cut off.
pub(crate) fn formats(bytes: &mut Bytes<'_>) -> Option<Result<Formats, ForeignError>> {
    let mut files = Vec::new();
    let mut systems = Vec::new();
    for _ in 0..bytes.u32()? {
        systems.push(bytes.text()?);
        for _ in 0..bytes.u32()? {
            let len = bytes.u64()?;
            files.push((systems.len() - 1, bytes.take(len)?));
        }
    }
    let files = files.iter().map(|(system, file)| (systems[*system].as_str(), *file));
    Some(Formats::new(files, bytes.is_big))
}
