//! What stands for `bpf` where this was built without: the same names, of which there is never a value.
#![allow(missing_docs, reason = "as with BPF")]

use std::{convert::Infallible, ffi::OsString};

use ekiden_check::{CpuSeen, Snapshot};
use ekiden_trace::{Header, Record, Trace};

use crate::{
    config::{Config, Queues},
    control::Control,
    error::{LoadError, Result},
    recorded::{Raw, Recording},
    waits::{Waits, Whom},
};

pub struct Baseline(Infallible);

pub struct Look(Infallible);

pub struct Prepared(Infallible);

pub struct Program(Infallible);

pub struct Recorder(Infallible);

pub struct RunqLat(Infallible);

pub struct Session(Infallible);

pub struct ShortRecorder(Infallible);

impl Baseline {
    pub fn start(_: Queues) -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn is_running(&self) -> bool {
        match self.0 {}
    }
}

impl Prepared {
    pub fn start(self) -> Result<Session> {
        match self.0 {}
    }
}

impl Look {
    pub fn load() -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn is_suspicious(&self) -> Result<bool> {
        match self.0 {}
    }

    pub fn nr_cpus(&self) -> u32 {
        match self.0 {}
    }

    pub fn idle_and_crowded(&self) -> (u32, u32) {
        match self.0 {}
    }

    pub fn cpus(&self) -> Result<Vec<CpuSeen>> {
        match self.0 {}
    }

    pub fn snapshot(&mut self, _: bool) -> Result<Snapshot> {
        match self.0 {}
    }
}

impl Recorder {
    pub fn load(_: u32) -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn look(&mut self) -> &mut Look {
        match self.0 {}
    }

    pub fn header(&self, _: &str) -> Result<Header> {
        match self.0 {}
    }

    pub fn begin(&mut self, _: &mut impl FnMut(Record)) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn begin_small(&mut self, _: &mut impl FnMut(Record)) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn with_sleepers(&mut self, _: &Header, _: &Trace, _: impl Fn(u64) -> u64) -> Result<Trace> {
        match self.0 {}
    }

    pub fn take(&mut self, _: &mut impl FnMut(Record)) {
        match self.0 {}
    }

    pub(crate) fn take_all(&mut self, _: &mut impl FnMut(Record)) {
        match self.0 {}
    }

    pub fn take_raw(&mut self, _: &mut impl FnMut(Raw)) {
        match self.0 {}
    }

    pub fn end(&mut self, _: &mut impl FnMut(Record)) -> u64 {
        match self.0 {}
    }

    pub fn end_raw(&mut self, _: &mut impl FnMut(Raw)) -> u64 {
        match self.0 {}
    }

    pub fn tell(&mut self, _: Raw, _: &mut impl FnMut(Record)) {
        match self.0 {}
    }

    pub(crate) fn attach_functions(&mut self) -> Result<()> {
        match self.0 {}
    }

    pub fn elapsed_ns(&self) -> u64 {
        match self.0 {}
    }

    pub fn begin_ns(&self) -> u64 {
        match self.0 {}
    }
}

impl RunqLat {
    pub fn start(_: &Whom) -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn waits(&self) -> Result<Waits> {
        match self.0 {}
    }
}

impl Session {
    pub fn start(_: &Config) -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn start_with(_: &Config, _: &mut Option<Program>) -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn prepare(_: &Config) -> Result<Prepared> {
        Err(LoadError::WithoutBpf)
    }

    pub fn control(&self) -> &Control {
        match self.0 {}
    }

    pub fn slot(&self) -> u32 {
        match self.0 {}
    }

    pub fn is_running(&self) -> bool {
        match self.0 {}
    }

    pub fn check(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn stop(self) -> Option<Program> {
        match self.0 {}
    }

    pub fn let_go(&mut self) {
        match self.0 {}
    }

    pub fn ready_only(_: &Config) -> Result<Control> {
        Err(LoadError::WithoutBpf)
    }
}

impl ShortRecorder {
    pub fn start(_: u32, _: &str) -> Result<Self> {
        Err(LoadError::WithoutBpf)
    }

    pub fn stop(self) -> Recording {
        match self.0 {}
    }
}

pub fn operations_of_the_kernel() -> Result<&'static [OsString]> {
    Err(LoadError::WithoutBpf)
}
