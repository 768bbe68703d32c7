//! What stands for an agent where this was built without BPF: there is never one.
#![allow(missing_docs, reason = "as with BPF")]

use std::convert::Infallible;
use std::fs::File;

use ekiden_host::Figure;
use ekiden_loader::{CallLog, Changes, LoadError, NumberedInstance, Result, Status, Upgrade};
use ekiden_recording::{Header, Instance};

use crate::config::{Config, Counts, Make, MakeNext, Next};

pub struct Agent(Infallible);

pub struct Prepared(Infallible);

impl Agent {
    pub fn start(_: &Config, _: Make) -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn prepare(_: &Config, _: Make) -> Result<Prepared> {
        Err(LoadError::WithoutBpf)
    }

    pub fn let_go(&mut self) {
        match self.0 {}
    }

    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub fn is_running(&self) -> bool {
        match self.0 {}
    }

    pub fn end(&self) -> Result<Changes> {
        match self.0 {}
    }

    pub fn check(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn upgrade(&self, _: &Next, _: MakeNext) -> Result<Upgrade> {
        match self.0 {}
    }

    pub fn save(&self) -> Result<Option<Vec<u8>>> {
        match self.0 {}
    }

    pub fn instance(&self) -> Instance {
        match self.0 {}
    }

    pub fn status(&self) -> Result<Status> {
        match self.0 {}
    }

    pub fn instances(&self) -> Vec<NumberedInstance> {
        match self.0 {}
    }

    pub fn tells_instances(&self) -> impl FnMut() -> Result<Vec<NumberedInstance>> + Send + use<> {
        || Ok(Vec::new())
    }

    pub fn call_log(&self) -> Result<Option<CallLog>> {
        match self.0 {}
    }

    pub fn call_log_file(&self) -> Option<&File> {
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

impl Prepared {
    pub fn start(self) -> Result<Agent> {
        match self.0 {}
    }
}

/// With BPF it does something.
impl Drop for Agent {
    fn drop(&mut self) {
        match self.0 {}
    }
}
