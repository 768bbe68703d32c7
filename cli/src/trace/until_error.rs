//! Files that are damaged or cut off: what comes before that place is used, and the error is reported once that is written.

use std::path::Path;

use anyhow::Result;

/// Items before the first error, which is kept.
pub(super) struct UntilError<I, E> {
    all: I,
    pub(super) error: Option<E>,
}

impl<T, E, I: Iterator<Item = Result<T, E>>> UntilError<I, E> {
    pub(super) fn of(all: I) -> Self {
        Self { all, error: None }
    }
}

impl<T, E, I: Iterator<Item = Result<T, E>>> Iterator for UntilError<I, E> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.error.is_some() {
            return None;
        }
        self.all.next()?.map_err(|error| self.error = Some(error)).ok()
    }
}

/// Tells the error of the file at `path`, if it has one, and that `output` has what comes before it.
pub(super) fn tell_error<E: Into<anyhow::Error>>(error: Option<E>, path: &Path, output: &Path) -> Result<()> {
    let Some(error) = error else { return Ok(()) };
    eprintln!("{} has what comes before the error", output.display());
    Err(error.into().context(path.display().to_string()))
}
