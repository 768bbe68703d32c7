//! `ekiden bench edit`: from a change in a policy's source until it runs in a virtual machine that is booted.

use std::{
    fs,
    path::Path,
    process::ExitCode,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ekiden_bench::{Judged, Limit, table};
use ekiden_build::{Builder, Project, Target, new_project};
use ekiden_vm::{Cache, Kernel, Scratch, Status, Stream, Vm, fetch};
use serde::Serialize;

use super::{
    Output, Verdict,
    guest::{Clock, InVm},
};
use crate::{
    booted::{Booted, Name},
    guest_run::GuestRun,
    machine::{follow_with, guest_command, install_modules},
    progress::Progress,
};

/// The policy that is changed: a project as `ekiden new` makes it.
const POLICY: &str = "edit-probe";

/// The expression that is changed in it: a turn lasts some nanoseconds longer each time.
const CHANGED: &str = "env.param(\"slice_us\") * 1000";

const LIMIT: Limit = Limit { name: "seconds from a change until it runs", at_most: 15.0 };

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  ekiden bench edit --check
      in a virtual machine of its own, booted beforehand
  ekiden vm start; ekiden bench edit --json   in the one that is there
A project is made with `ekiden new` (in the cache), built once, changed, built
again, and run: that is timed.")]
pub(crate) struct EditBench {
    #[command(flatten)]
    vm: InVm,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Edited {
    bench: &'static str,
    kernel: String,
    build_seconds: f64,
    run_seconds: f64,
    limits: Vec<Judged>,
    passed: bool,
}

impl EditBench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.vm.refuse_parallel()?;
        let mut progress = Progress::new();
        let cache = Cache::from_env()?;
        let edited = match Booted::find(&Name::of_checkout())? {
            Some(booted) => {
                let kernel = fetch(&cache, &booted.note.release, &mut progress.sink())?;
                let ekiden = booted.program("ekiden")?;
                measure(&cache, &kernel, &booted.vm, &booted.note.share, &ekiden, &mut progress)?
            }
            None => {
                let kernel = self.vm.shape.fetch(&mut progress)?;
                let share = Scratch::new()?;
                progress.step(format!("booting Linux {}", kernel.release()));
                let vm = Vm::boot(&kernel, &self.vm.spec(&kernel, share.path(), Clock::Quick)?)?;
                let edited = measure(&cache, &kernel, &vm, share.path(), "ekiden", &mut progress)?;
                vm.shutdown()?;
                edited
            }
        };
        let text = format!(
            "edit, Linux {}: {:.1} s to build, {:.1} s until it ran\n{}",
            edited.kernel,
            edited.build_seconds,
            edited.run_seconds,
            table(&["limit", "figure", "at most", "verdict"], edited.limits.iter().map(Judged::cells))
        );
        self.output.show(&edited, &text, &Verdict::of_limits(&edited.limits, true))
    }
}

fn measure(
    cache: &Cache,
    kernel: &Kernel,
    vm: &Vm,
    share: &Path,
    ekiden: &str,
    progress: &mut Progress,
) -> Result<Edited> {
    let parent = cache.directory("edit")?;
    let directory = parent.join(POLICY);
    if !directory.exists() {
        new_project(&parent, POLICY)?;
    }
    progress.step("building the project for the first time");
    let builder = Builder::new(cache, &mut progress.sink())?;
    let project = Project::open(&directory)?;
    let target = Target::fetched(kernel);
    builder.build(&target, &project, project.policies(), &mut progress.sink())?;

    progress.step("changing it, building it, running it");
    let start = Instant::now();
    change(&directory.join("src/lib.rs"))?;
    let modules = builder.build(&target, &project, project.policies(), &mut progress.sink())?;
    ensure!(!modules.rebuilt.is_empty(), "the change made no difference to the module; report this");
    install_modules(&modules.directory, share)?;
    let build_seconds = start.elapsed().as_secs_f64();
    let mut printed = String::new();
    let command = guest_command(GuestRun::new(ekiden, POLICY, [ekiden, "status"]).argv());
    let status = follow_with(vm, &command, &mut |stream, bytes| {
        if stream == Stream::Stdout {
            printed.push_str(&String::from_utf8_lossy(bytes));
        } else {
            eprint!("{}", String::from_utf8_lossy(bytes));
        }
    })?;
    let seconds = start.elapsed().as_secs_f64();
    progress.end_step();
    if status != Status::Code(0) || !printed.contains(POLICY) {
        bail!("the changed policy did not run ({status}): {printed}");
    }
    let judged = LIMIT.judge(Some(seconds));
    Ok(Edited {
        bench: "edit",
        kernel: kernel.release().to_owned(),
        build_seconds,
        run_seconds: seconds - build_seconds,
        passed: judged.met,
        limits: vec![judged],
    })
}

/// Makes a change that is in no earlier build.
fn change(source: &Path) -> Result<()> {
    let text = fs::read_to_string(source).with_context(|| format!("cannot read {}", source.display()))?;
    let Some((before, after)) = text.split_once(CHANGED) else {
        bail!("{} is not as `ekiden new` makes it; remove its project", source.display())
    };
    // Up to the end of the line may be the last change.
    let rest = &after[after.find('\n').unwrap_or(after.len())..];
    let end = if after.trim_start_matches([' ', '+']).trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(',')
    {
        ","
    } else {
        ""
    };
    let extra = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() % 1_000_000;
    fs::write(source, format!("{before}{CHANGED} + {extra}{end}{rest}"))
        .with_context(|| format!("cannot write {}", source.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_can_be_changed_again_and_again() {
        let parent = tempfile::tempdir().unwrap();
        let source = new_project(parent.path(), POLICY).unwrap().join("src/lib.rs");
        let original = fs::read_to_string(&source).unwrap();
        change(&source).unwrap();
        let first = fs::read_to_string(&source).unwrap();
        change(&source).unwrap();
        let second = fs::read_to_string(&source).unwrap();
        let lines = |text: &str| text.lines().count();
        assert_ne!(original, first);
        assert_eq!((lines(&original), lines(&first)), (lines(&first), lines(&second)));
        assert!(second.matches(" + ").count() == first.matches(" + ").count(), "{second}");
    }
}
