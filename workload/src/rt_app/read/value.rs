//! A value of a file with the place where it stands, of the kind that rt-app wants there.

use super::Result;
use crate::rt_app::json::{Data, Entry, Value};
use crate::rt_app::{Place, RtAppError};

/// A value with the keys that lead to it.
#[derive(Clone)]
pub(super) struct At<'a> {
    pub(super) value: &'a Value,
    pub(super) path: String,
}

impl<'a> At<'a> {
    fn place(&self) -> Place {
        Place::new(self.value.at, self.path.as_str())
    }

    pub(super) fn fail<T>(&self, why: impl Into<String>) -> Result<T> {
        Err(RtAppError::new(self.place(), why))
    }

    pub(super) fn under(&self, key: &str, value: &'a Value) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Self { value, path }
    }

    pub(super) fn wrong<T>(&self, wanted: &str) -> Result<T> {
        self.fail(format!("{} where {wanted} should be", self.value.data.kind()))
    }

    pub(super) fn object(&self) -> Result<&'a [Entry]> {
        match &self.value.data {
            Data::Object(entries) => Ok(entries),
            _ => self.wrong("an object"),
        }
    }

    /// What an object says under this key, the first time.
    pub(super) fn property(&self, key: &str) -> Result<Option<Self>> {
        let found = self.object()?.iter().find(|entry| entry.key == key);
        Ok(found.map(|entry| self.under(key, &entry.value)))
    }

    pub(super) fn text(&self) -> Result<&'a str> {
        match &self.value.data {
            Data::Text(text) => Ok(text),
            _ => self.wrong("a string"),
        }
    }

    pub(super) fn bool(&self) -> Result<bool> {
        match self.value.data {
            Data::Bool(value) => Ok(value),
            _ => self.wrong("true or false"),
        }
    }

    pub(super) fn integer(&self, least: i64) -> Result<i64> {
        match self.value.data {
            Data::Integer(value) if (least..=i32::MAX.into()).contains(&value) => Ok(value),
            Data::Integer(value) => self.fail(format!("{value}: choose from {least} to {}", i32::MAX)),
            _ => self.wrong("an integer"),
        }
    }

    /// An integer that is not negative.
    pub(super) fn count(&self) -> Result<u64> {
        Ok(self.integer(0)?.unsigned_abs())
    }

    pub(super) fn us(&self) -> Result<u64> {
        Ok(self.count()? * 1_000)
    }

    /// How often something is done; `None` without an end.
    pub(super) fn times(&self) -> Result<Option<u64>> {
        let times = self.integer(-1)?;
        Ok((times >= 0).then_some(times.unsigned_abs()))
    }
}
