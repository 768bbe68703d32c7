//! Boots a stock kernel and runs one command in it: `boot [--release R] [--share DIR] [--cpus N] [--cmdline WORDS]
//! [--icount] [--parallel] [--shift N] [--timeout SECONDS] COMMAND…`.
use ekiden_vm::{Cache, GuestCommand, Mode, Stream, Vm, VmSpec, fetch, fetch_newest_passing};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut spec = VmSpec::default();
    let mut release = None;
    let mut timeout = std::time::Duration::from_secs(60);
    let mut command: Vec<String> = std::env::args().skip(1).collect();
    while command.first().is_some_and(|word| word.starts_with("--")) {
        match command.remove(0).as_str() {
            "--release" => release = Some(command.remove(0)),
            "--share" => spec.share_dir = Some(command.remove(0).into()),
            "--cpus" => spec.cpus = command.remove(0).parse()?,
            "--cmdline" => spec.cmdline = command.remove(0),
            "--shift" => spec.icount_shift = command.remove(0).parse()?,
            "--timeout" => timeout = std::time::Duration::from_secs(command.remove(0).parse()?),
            "--icount" => spec.mode = Mode::Icount,
            "--parallel" => spec.mode = Mode::Parallel,
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    let cache = Cache::from_env()?;
    let mut progress = |line: &str| eprintln!("{line}");
    let kernel = match release {
        Some(release) => fetch(&cache, &release, &mut progress)?,
        None => fetch_newest_passing(&cache, &mut progress)?,
    };
    let start = std::time::Instant::now();
    let vm = Vm::boot(&kernel, &spec).map_err(|error| error.to_string())?;
    eprintln!("{} booted in {:.1?}", vm.release(), start.elapsed());
    for problem in vm.problems().iter().chain(&vm.console().findings()) {
        eprintln!("problem: {problem}");
    }
    let status = vm.spawn(&GuestCommand::new(command).timeout(timeout))?.stream(&mut |stream, bytes| {
        // A closed terminal is no reason to stop.
        let _ = match stream {
            Stream::Stdout => std::io::stdout().write_all(bytes),
            Stream::Stderr => std::io::stderr().write_all(bytes),
        };
    })?;
    eprintln!("{status}");
    Ok(vm.shutdown()?)
}
