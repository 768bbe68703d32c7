//! Where the trace of a simulation goes.

use std::io::{self, Write};

pub(crate) use ekiden_trace::{Header, Record, Trace, What};

/// Where records go.
pub(crate) enum Sink {
    Nowhere,
    Memory(Trace),
    /// The first error is kept, and ends the writing.
    Writer(Box<dyn Write>, io::Result<()>),
}

impl Sink {
    pub(crate) fn begin(&mut self, header: &Header) {
        match self {
            Self::Nowhere => {}
            Self::Memory(trace) => *trace = Trace::new(header),
            Self::Writer(writer, result) => *result = writer.write_all(&header.to_bytes()),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, record: Record) {
        match self {
            Self::Nowhere => {}
            Self::Memory(trace) => trace.push(record),
            Self::Writer(writer, result) => {
                if result.is_ok() {
                    *result = writer.write_all(&record.to_bytes());
                }
            }
        }
    }

    /// The trace, if it was kept in memory.
    pub(crate) fn end(self) -> io::Result<Trace> {
        match self {
            Self::Nowhere => Ok(Trace::default()),
            Self::Memory(trace) => Ok(trace),
            Self::Writer(mut writer, result) => {
                result?;
                writer.flush()?;
                Ok(Trace::default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = Sink::Writer(Box::new(Full), Ok(()));
        sink.begin(&Header::default());
        assert_eq!(sink.end().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
