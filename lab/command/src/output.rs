//! Files that appear when they are whole: until then they have another name, and an error leaves nothing. Traces with names
//! that end in `.zst` are compressed, and those that are, by whatever name, are read as any other. So are recordings of
//! trace-cmd and perf: whatever opens a trace opens them, as a trace that is made while it is read.

use std::{
    fs::{self, File, Permissions},
    io::{self, BufRead, BufReader, Read, Write},
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result, bail};
use ekiden_foreign::{Foreign, is_foreign};
use ekiden_trace::{Reader, TRACE_VERSION};
use tempfile::TempPath;
use zstd::{Decoder, Encoder};

/// Begins whatever zstd has compressed.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Begins recordings.
const RECORDING_MAGIC: &[u8] = b"EKIRECRD";

/// A file that is being written. It may be cloned, for writers that want to own it.
#[derive(Clone)]
pub struct Output(Arc<Mutex<Inner>>);

struct Inner {
    stream: Stream,
    /// The name that it has until it is whole; none if it is no file that could be half.
    draft: Option<TempPath>,
    path: PathBuf,
}

enum Stream {
    Plain(File),
    Zstd(Encoder<'static, File>),
    Finished,
}

impl Output {
    /// Begins a file; `-` is standard output.
    pub fn create(path: &Path) -> Result<Self> {
        Self::create_for(path, 0o666)
    }

    /// Begins a file that only this user may read, as it says what the tasks of others did.
    pub fn create_private(path: &Path) -> Result<Self> {
        Self::create_for(path, 0o600)
    }

    fn create_for(path: &Path, mode: u32) -> Result<Self> {
        let failed = || format!("cannot write {}", path.display());
        let is_stdout = path.as_os_str() == "-";
        // What a link leads to is replaced, not the link; and a device or pipe is written to as it is.
        let path = fs::canonicalize(path).ok().filter(|_| !is_stdout).unwrap_or_else(|| path.to_owned());
        let is_special = fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file());
        let (file, draft) = if is_stdout {
            (File::from(io::stdout().as_fd().try_clone_to_owned().with_context(failed)?), None)
        } else if is_special {
            (File::create(&path).with_context(failed)?, None)
        } else {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let draft = tempfile::Builder::new()
                .prefix(&format!(".{name}."))
                .suffix(".partial")
                .permissions(Permissions::from_mode(mode))
                .tempfile_in(parent)
                .with_context(failed)?;
            let (file, path) = draft.into_parts();
            (file, Some(path))
        };
        let stream = match path.extension().is_some_and(|extension| extension == "zst") {
            true => Stream::Zstd(Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL).with_context(failed)?),
            false => Stream::Plain(file),
        };
        Ok(Self(Arc::new(Mutex::new(Inner { stream, draft, path }))))
    }

    /// A file without a name on the same disk, for what has to be worked over before it can be written.
    pub fn scratch(&self) -> Result<File> {
        let inner = self.lock();
        let directory = inner.draft.as_deref().and_then(Path::parent);
        let file = directory.map_or_else(tempfile::tempfile, tempfile::tempfile_in);
        file.with_context(|| format!("cannot put anything beside {}", inner.path.display()))
    }

    /// Gives it its name. A caller that buffers what goes into it has to flush before.
    pub fn finish(self) -> Result<()> {
        let inner = &mut *self.lock();
        let failed = || format!("cannot write {}", inner.path.display());
        if let Stream::Zstd(encoder) = std::mem::replace(&mut inner.stream, Stream::Finished) {
            encoder.finish().with_context(failed)?;
        }
        inner.draft.take().map_or(Ok(()), |draft| draft.persist(&inner.path)).with_context(failed)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.lock().stream {
            Stream::Plain(file) => file.write(bytes),
            Stream::Zstd(encoder) => encoder.write(bytes),
            Stream::Finished => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes all of a file.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut output = Output::create(path)?;
    output.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
    output.finish()
}

/// Begins a file that is longer than what tells them apart.
const BEGIN_LEN: usize = 16;

/// Opens a trace, compressed or not, or a recording of trace-cmd or perf.
pub fn open_trace(path: &Path) -> Result<Reader<Box<dyn Read>>> {
    let failed = || format!("cannot open the trace {}", path.display());
    let file = File::open(path).with_context(failed)?;
    // The reader reads much at a time by itself.
    let mut file = BufReader::with_capacity(BEGIN_LEN, file);
    let begin = file.fill_buf().with_context(failed)?;
    if begin.starts_with(RECORDING_MAGIC) {
        bail!(
            "{} is a recording of a policy's calls and no trace: give it to ekiden replay, trace info, cat or export",
            path.display()
        );
    }
    let is_compressed = begin.starts_with(ZSTD_MAGIC);
    let source: Box<dyn Read> = if is_foreign(begin) {
        Box::new(Foreign::open(file.into_inner()).with_context(|| path.display().to_string())?)
    } else if is_compressed {
        let mut unpacked = BufReader::new(Decoder::new(file).with_context(failed)?);
        if unpacked.fill_buf().is_ok_and(is_foreign) {
            bail!("{} is a compressed recording of another program: unpack it first, with unzstd", path.display());
        }
        Box::new(unpacked)
    } else {
        Box::new(file)
    };
    let reader = Reader::new(source).with_context(|| path.display().to_string())?;
    if reader.version() < TRACE_VERSION {
        eprintln!("ekiden: {}: a trace of format {}: {OLD_TRACE}", path.display(), reader.version());
    }
    Ok(reader
        .on_unknown(|kind| eprintln!("ekiden: records of kind {kind} are passed over: a later version wrote them")))
}

/// Why a trace of an older format does not do.
const OLD_TRACE: &str = "it names no task, and does not say which CPUs one may use";
