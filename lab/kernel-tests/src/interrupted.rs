//! Upgrades that signals end, while CPUs do not wait for each other: the old policy still runs.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use ekiden_loader::{LoadError, Session, Status, Succession};
use nix::{
    sys::signal::{SigHandler, Signal, kill, signal},
    unistd::Pid,
};
use serde::Serialize;

/// Upgrades while signals come.
#[derive(Default, Serialize)]
pub(crate) struct Interrupted {
    /// How many a signal ended: after each the old policy runs.
    interrupted: u64,
    /// For how many of these the status says how long CPUs had stood still for nothing: something else than what it says of the last
    /// one that was done.
    noted: u64,
    /// The longest such time.
    for_nothing_ns_max: u64,
}

/// A hundred upgrades while signals come.
pub(crate) fn interrupted(session: &Session) -> Result<Interrupted> {
    extern "C" fn comes(_: i32) {}
    // SAFETY: a handler that does nothing may interrupt anything.
    unsafe { signal(Signal::SIGUSR1, SigHandler::Handler(comes)) }?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let signals = scope.spawn(|| {
            while !is_over.load(Relaxed) {
                // To the main thread, if that does not block it.
                kill(Pid::this(), Signal::SIGUSR1)?;
                thread::sleep(Duration::from_micros(300));
            }
            anyhow::Ok(())
        });
        let stood_still_ns = || anyhow::Ok(Status::read()?.unwrap_or_default().stops.wait_ns);
        let mut report = Interrupted::default();
        let mut done_ns = stood_still_ns()?;
        let done = (0..100).try_for_each(|round| {
            match session.control().upgrade(&Succession::default()) {
                Ok(_) => done_ns = stood_still_ns()?,
                Err(LoadError::Interrupted) => {
                    let ns = stood_still_ns()?;
                    report.interrupted += 1;
                    report.noted += u64::from(ns != done_ns);
                    report.for_nothing_ns_max = report.for_nothing_ns_max.max(ns);
                }
                Err(error) => return Err(error).with_context(|| format!("upgrade {round} while signals come")),
            }
            Ok(session.check()?)
        });
        is_over.store(true, Relaxed);
        signals.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        done.map(|()| report)
    })
}
