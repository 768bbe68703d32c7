//! Loads in the format of rt-app, the field's tool for emulating real-time workloads (its `doc/tutorial.txt`).
//!
//! Every key of that grammar is either modelled, or refused with its place. What changes nothing for the scheduler, such as
//! where rt-app writes its logs, and what no version of the grammar knows, comes back as a [`Remark`]: nothing is passed
//! over in silence. The grammar is that of the tutorial; where it and rt-app's code differ (what `sync` does with its
//! mutex), the code counts.

mod json;
mod read;

use std::fmt;

use crate::spec::{SpecError, Workload};
use json::Position;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, in characters.
    pub column: u32,
    /// The keys that lead there, with dots between them; empty where there are none.
    pub path: String,
}

impl Place {
    fn new(at: Position, path: impl Into<String>) -> Self {
        Self { line: at.line, column: at.column, path: path.into() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)?;
        match self.path.as_str() {
            "" => Ok(()),
            path => write!(f, " ({path})"),
        }
    }
}

/// Something in a file that does not change what the load does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Where it stands.
    pub place: Place,
    /// Why it makes no difference.
    pub what: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum RtAppError {
    /// Because of this place.
    #[error("{place}: {why}")]
    At {
        /// Where.
        place: Place,
        /// The mistake there, and what to write instead.
        why: String,
    },
    /// What it describes cannot be run.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl RtAppError {
    fn new(place: Place, why: impl Into<String>) -> Self {
        Self::At { place, why: why.into() }
    }
}

/// Whether `text` is rather in this format than in Ekiden's own: its `tasks` are an object, not a list. A text that
/// cannot be read at all is judged by its looks.
pub fn is_rt_app(text: &str) -> bool {
    if let Ok((root, _)) = json::parse(text) {
        let json::Data::Object(entries) = root.data else { return false };
        return entries.iter().any(|entry| entry.key == "tasks" && matches!(entry.value.data, json::Data::Object(_)));
    }
    let after = text.split_once("\"tasks\"").and_then(|(_, after)| after.split_once(':'));
    after.is_some_and(|(_, value)| value.trim_start().starts_with('{'))
}

/// The load of a file in either format, under this name if it does not say its own.
///
/// # Errors
/// As [`parse`] and [`Workload::parse`].
pub fn read(name: &str, text: &str) -> Result<(Workload, Vec<Remark>), RtAppError> {
    if is_rt_app(text) { parse(name, text) } else { Ok((Workload::parse(text)?, Vec::new())) }
}

/// The load that `text` describes, under this name, and what there is to say about it.
///
/// # Errors
/// With the place of the first thing that is wrong or that is not modelled.
pub fn parse(name: &str, text: &str) -> Result<(Workload, Vec<Remark>), RtAppError> {
    let (root, more) = json::parse(text)?;
    let (load, mut remarks) = read::load(name, &root)?;
    if let Some(at) = more {
        let what = "what follows the end of the load is not read, as rt-app does not".into();
        remarks.push(Remark { place: Place::new(at, ""), what });
    }
    // A task that is forked in several places is read as often.
    remarks.sort_by_key(|remark| (remark.place.line, remark.place.column));
    remarks.dedup();
    load.check()?;
    Ok((load, remarks))
}
