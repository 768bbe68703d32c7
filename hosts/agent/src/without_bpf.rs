//! What stands for an agent where this was built without BPF: there is never one.
#![allow(missing_docs, reason = "as with BPF")]

use std::convert::Infallible;

use ekiden_host::Figure;
use ekiden_loader::{CallLog, LoadError, Result};
use ekiden_recording::Header;

use crate::config::{Config, Counts, Make};

pub struct Agent(Infallible);

impl Agent {
    pub fn start(_: &Config, _: Make) -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub fn is_running(&self) -> bool {
        match self.0 {}
    }

    pub fn check(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn call_log(&self) -> Result<Option<CallLog>> {
        match self.0 {}
    }

    pub fn header(&self, _: &str) -> Result<Header> {
        match self.0 {}
    }

    pub fn figures(&self) -> Vec<Figure> {
        match self.0 {}
    }

    pub fn counts(&self) -> Counts {
        match self.0 {}
    }
}

/// With BPF it does something.
impl Drop for Agent {
    fn drop(&mut self) {
        match self.0 {}
    }
}
