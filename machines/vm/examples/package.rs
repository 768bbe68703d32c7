//! Downloads a package of a release of Debian, whatever this machine runs: `package RELEASE NAME DIRECTORY`.
use ekiden_vm::{Cache, package_lists};
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [release, name, directory] = &args[..] else {
        return Err("usage: package RELEASE NAME DIRECTORY".into());
    };
    let config = package_lists(&Cache::from_env()?, release, &mut |line| eprintln!("{line}"))?;
    let mut apt = Command::new("apt-get");
    apt.arg("-c").arg(config).args(["-qq", "download", name]).current_dir(directory);
    if apt.status()?.success() { Ok(()) } else { Err(format!("apt-get cannot download {name} of {release}").into()) }
}
