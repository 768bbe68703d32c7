//! A policy continues from what another one of its name has saved in the other place.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ekiden::Call;
use ekiden_agent::Agent;
use ekiden_linked::make;
use ekiden_loader::{Config, Hint, LoadError, Session, Status};
use ekiden_test_policies::Faulty;
use serde::Serialize;

use crate::guest_tests::config;

#[derive(Serialize)]
struct SavesReport {
    saved: Vec<u8>,
    /// What each place says of bytes in another form.
    refused: [String; 2],
    /// Hints that it took at the end.
    hints: usize,
    /// Why it went then.
    fault: Option<String>,
}

fn refusal<T>(made: ekiden_loader::Result<T>) -> Result<String> {
    match made {
        Err(LoadError::Refused(reason)) => Ok(reason),
        Err(error) => Err(error.into()),
        Ok(_) => bail!("what is in another form was taken"),
    }
}

/// A policy that goes wrong at the third hint gets the first in the kernel, goes to an agent and comes back.
pub(crate) fn saves(modules: &Path) -> Result<()> {
    let params = |after: u32| format!("call={} fault=0 after={after}", Call::ParseHint as u32);
    let in_kernel = |params, saved| Config { params, saved, ..config(modules, "faulty") };
    let in_agent = |saved| ekiden_agent::Config { params: params(1000), saved, ..ekiden_agent::Config::new("faulty") };
    let wrong = vec![2, 0, 0];

    let mut session = Session::start(&in_kernel(params(3), Vec::new()))?;
    session.control().hint(None, Hint::Now(&1_u64.to_ne_bytes()))?;
    let max_tasks = config(modules, "faulty").max_tasks;
    let save = |session: &Session| -> Result<Vec<u8>> {
        session.control().save(session.slot(), max_tasks)?.context("it saves nothing in the kernel")
    };
    let saved = save(&session)?;
    let of_agent = refusal(Agent::prepare(&in_agent(wrong.clone()), make::<Faulty>))?;
    session.check().context("after an agent was refused")?;
    let ready = Agent::prepare(&in_agent(saved.clone()), make::<Faulty>)?;
    session.let_go();
    let mut agent = ready.start()?;
    drop(session);
    ensure!(agent.save()?.as_ref() == Some(&saved), "the agent continues from {:?}", agent.save()?);

    let of_kernel = refusal(Session::prepare(&in_kernel(params(1000), wrong)))?;
    agent.check().context("after one in the kernel was refused")?;
    let ready = Session::prepare(&in_kernel(params(1000), saved.clone()))?;
    agent.let_go();
    let session = ready.start()?;
    drop(agent);
    ensure!(save(&session)? == saved, "the kernel continues from something else");
    session.check()?;
    let hint = || session.control().hint(None, Hint::Now(&1_u64.to_ne_bytes()));
    let hints = (0..10).take_while(|_| hint().is_ok()).count();
    let fault = Status::read()?.and_then(|status| status.fault);
    println!("{}", serde_json::to_string(&SavesReport { saved, refused: [of_agent, of_kernel], hints, fault })?);
    Ok(())
}
