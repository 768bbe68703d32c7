//! What stands for `boot` where this was built without: the same names, of machines that there never are.
#![allow(missing_docs, reason = "as with `boot`")]

use crate::{
    Cache, Error, GuestCommand, Holder, Kernel, Mode, Output, Result, Size, Status, Stopped, Stream, VmSpec,
    apt::Progress,
};
use std::{
    convert::Infallible,
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub struct Vm(Infallible);

#[derive(Debug)]
pub struct Console(Infallible);

#[derive(Debug)]
pub struct Running(Infallible);

#[derive(Clone, Debug)]
pub struct Signaller(Infallible);

#[derive(Clone, Debug)]
pub struct Terminal(Infallible);

impl Vm {
    pub fn boot(_: &Kernel, _: &VmSpec) -> Result<Self> {
        Err(Error::WithoutVm)
    }

    pub fn boot_detached(_: &Path, _: &Kernel, _: &VmSpec) -> Result<Self> {
        Err(Error::WithoutVm)
    }

    pub fn attach(_: &Path) -> Result<Self> {
        Err(Error::WithoutVm)
    }

    pub fn look(_: &Path) -> Option<(i32, Option<Holder>)> {
        None
    }

    pub fn stop(_: &Path, _: bool) -> Result<Option<Stopped>> {
        Err(Error::WithoutVm)
    }

    pub fn run(&self, _: &GuestCommand) -> Result<Output> {
        match self.0 {}
    }

    pub fn run_ok(&self, _: &GuestCommand) -> Result<String> {
        match self.0 {}
    }

    pub fn spawn(&self, _: &GuestCommand) -> Result<Running> {
        match self.0 {}
    }

    pub fn console(&self) -> &Console {
        match self.0 {}
    }

    pub fn release(&self) -> &str {
        match self.0 {}
    }

    pub fn problems(&self) -> &[String] {
        match self.0 {}
    }

    pub fn shutdown(self) -> Result<()> {
        match self.0 {}
    }

    pub fn qemu_pid(&self) -> i32 {
        match self.0 {}
    }

    pub fn instructions(&self) -> Result<u64> {
        match self.0 {}
    }
}

impl VmSpec {
    pub fn resolve_mode(&self, _: &Kernel) -> Result<Mode> {
        Err(Error::WithoutVm)
    }
}

impl Console {
    pub fn tail(&self, _: usize) -> String {
        match self.0 {}
    }

    pub fn findings(&self) -> Vec<String> {
        match self.0 {}
    }

    pub fn has_emulator_fault(&self) -> bool {
        match self.0 {}
    }

    pub fn first_finding(&self, _: usize) -> String {
        match self.0 {}
    }
}

impl Running {
    pub fn wait_for(&mut self, _: &str) -> Result<()> {
        match self.0 {}
    }

    pub fn try_status(&mut self) -> Result<Option<Status>> {
        match self.0 {}
    }

    pub fn signal(&self, _: i32) -> Result<()> {
        match self.0 {}
    }

    pub fn wait(self) -> Result<Output> {
        match self.0 {}
    }

    pub fn stream(self, _: &mut dyn FnMut(Stream, &[u8])) -> Result<Status> {
        match self.0 {}
    }

    pub fn signaller(&self) -> Signaller {
        match self.0 {}
    }

    pub fn terminal(&self) -> Terminal {
        match self.0 {}
    }
}

impl Signaller {
    pub fn signal(&self, _: i32) -> Result<()> {
        match self.0 {}
    }

    pub fn in_terminal(&self) -> bool {
        match self.0 {}
    }

    pub fn abandon(&self) {
        match self.0 {}
    }
}

impl Terminal {
    pub fn input(&self, _: &[u8]) -> Result<()> {
        match self.0 {}
    }

    pub fn resize(&self, _: Size) -> Result<()> {
        match self.0 {}
    }
}

pub const fn can_boot() -> Result<()> {
    Err(Error::WithoutVm)
}

pub fn program_disk(_: &Cache, _: &[&str], _: Progress<'_>) -> Result<PathBuf> {
    Err(Error::WithoutVm)
}

pub fn prepare_repair(_: &Cache, _: &Kernel, _: Progress<'_>) -> Result<PathBuf> {
    Err(Error::WithoutVm)
}
