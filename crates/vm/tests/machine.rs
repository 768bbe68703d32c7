//! What a booted machine promises. These tests boot stock kernels; they need `cargo build -p ekiden-guest` first.

use ekiden_vm::{Cache, Error, GuestCommand, Kernel, Status, Vm, VmSpec, fetch_newest_passing};
use std::{
    fs,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tempfile::TempDir;

fn kernel() -> Kernel {
    let cache = Cache::from_env().unwrap();
    fetch_newest_passing(&cache, &mut |line| eprintln!("{line}")).unwrap_or_else(|error| panic!("{error}"))
}

/// Nothing is measured here, so the guest's clock may run ahead of its instructions.
fn spec() -> VmSpec {
    VmSpec { icount_shift: 3, ..VmSpec::default() }
}

/// One machine for all tests that leave it as it was. It ends with the last of those that run at a time, not with the process: statics
/// are not dropped, and the machine has files.
fn shared() -> Arc<(Vm, TempDir)> {
    static SHARED: Mutex<Weak<(Vm, TempDir)>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let share = TempDir::new().unwrap();
        let spec = VmSpec { share_dir: Some(share.path().to_owned()), ..spec() };
        let vm = Vm::boot(&kernel(), &spec).unwrap_or_else(|error| panic!("{error}"));
        assert!(vm.problems().is_empty(), "{:?}", vm.problems());
        let booted = Arc::new((vm, share));
        *shared = Arc::downgrade(&booted);
        booted
    })
}

#[test]
fn output_and_exit_status_come_back() {
    let (vm, _) = &*shared();
    let output =
        vm.run(&GuestCommand::shell("echo out; echo $X >&2; pwd; exit 3").env("X", "err").cwd("/tmp")).unwrap();
    assert_eq!(output.status, Status::Code(3));
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n/tmp\n", "err\n"));
    let output = vm.run(&GuestCommand::shell("kill -TERM $$")).unwrap();
    assert_eq!(output.status, Status::Signal(15));
}

#[test]
fn long_output_arrives_whole() {
    let (vm, _) = &*shared();
    let output = vm.run(&GuestCommand::new(["seq", "1", "60000"])).unwrap();
    let expected: String = (1..=60_000).map(|number| format!("{number}\n")).collect();
    assert!(output.stdout == expected, "{} bytes", output.stdout.len());
}

#[test]
fn a_background_process_that_keeps_the_output_open_does_not_delay_the_end() {
    let (vm, _) = &*shared();
    let output = vm.run(&GuestCommand::shell("sleep 1000000000 & echo done $!")).unwrap();
    let pid = output.stdout.trim().strip_prefix("done ").unwrap();
    vm.run_ok(&GuestCommand::new(["kill", pid])).unwrap();
}

#[test]
fn a_missing_program_is_an_error_that_names_it() {
    let (vm, _) = &*shared();
    let error = vm.run(&GuestCommand::new(["no-such-program"])).unwrap_err();
    assert!(matches!(&error, Error::Guest { .. }) && error.to_string().contains("no-such-program"), "{error}");
}

#[test]
fn commands_run_side_by_side_and_are_killed_with_their_children() {
    let (vm, _) = &*shared();
    // An idle guest's clock jumps from timer to timer, so a long sleep has to be very long.
    let mut waiting = vm.spawn(&GuestCommand::shell("echo up; sleep 1000000000 & sleep 1000000000")).unwrap();
    waiting.wait_for("up").unwrap();
    assert_eq!(vm.run_ok(&GuestCommand::new(["echo", "other"])).unwrap(), "other\n");
    assert_eq!(waiting.try_status().unwrap(), None);
    waiting.signal(15).unwrap();
    assert_eq!(waiting.wait().unwrap().status, Status::Signal(15));
    drop(vm.spawn(&GuestCommand::new(["sleep", "1000000001"])).unwrap());
    let gone = "while pgrep -x sleep; do sleep 0.1; done";
    vm.run_ok(&GuestCommand::shell(gone)).unwrap();
}

#[test]
fn a_command_that_takes_too_long_is_killed_and_its_output_shown() {
    let (vm, _) = &*shared();
    let command = GuestCommand::shell("echo begun; while :; do :; done").timeout(Duration::from_secs(3));
    let error = vm.run(&command).unwrap_err();
    assert!(matches!(&error, Error::Timeout { .. }) && error.to_string().contains("begun"), "{error}");
    vm.run_ok(&GuestCommand::new(["true"])).unwrap();
}

#[test]
fn the_share_is_written_from_both_sides() {
    let (vm, share) = &*shared();
    for round in 0..3 {
        fs::write(share.path().join("to"), format!("host {round}")).unwrap();
        let guest =
            "cat /host/to; cat /host/to > /host/from; echo '#!/bin/sh' > /host/run; chmod +x /host/run; /host/run";
        assert_eq!(vm.run_ok(&GuestCommand::shell(guest)).unwrap(), format!("host {round}"));
        assert_eq!(fs::read_to_string(share.path().join("from")).unwrap(), format!("host {round}"));
    }
}

#[test]
fn the_guest_has_what_schedulers_need() {
    let (vm, _) = &*shared();
    let script = "set -e; ls /sys/fs/bpf /sys/kernel/debug/sched /sys/kernel/tracing/events/sched > /dev/null; \
                  cat /sys/kernel/sched_ext/state; grep -c CONFIG_SCHED_CLASS_EXT=y /boot/config-$(uname -r); \
                  ls /sys/fs/cgroup/cgroup.procs /sys/kernel/btf/vmlinux > /dev/null; nproc";
    assert_eq!(vm.run_ok(&GuestCommand::shell(script)).unwrap(), "disabled\n1\n2\n");
    assert_eq!(vm.console().findings(), Vec::<String>::new());
}

#[test]
fn a_panic_ends_the_command_with_the_console_and_numa_nodes_are_real() {
    let spec = VmSpec { cpus: 4, numa_nodes: 2, ..spec() };
    let vm = Vm::boot(&kernel(), &spec).unwrap_or_else(|error| panic!("{error}"));
    let nodes = vm.run_ok(&GuestCommand::shell("cat /sys/devices/system/node/node*/cpulist")).unwrap();
    assert_eq!(nodes, "0-1\n2-3\n");
    let error = vm.run(&GuestCommand::shell("echo c > /proc/sysrq-trigger")).unwrap_err();
    // How much of the panic is among the last lines depends on how deep the stack was.
    assert!(matches!(&error, Error::Gone { .. }) && error.to_string().contains("Kernel Offset"), "{error}");
    let findings = vm.console().findings();
    assert!(findings.iter().any(|finding| finding.contains("sysrq")), "{findings:?}");
}

#[test]
fn a_kernel_that_does_not_come_up_shows_its_console() {
    let spec = VmSpec { cmdline: "rdinit=/no-such-init".into(), ..spec() };
    let error = Vm::boot(&kernel(), &spec).unwrap_err();
    let Error::Boot { log, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("/no-such-init"), "{error}");
    // The machine's files are kept for whoever reads the error.
    fs::remove_dir_all(log.parent().unwrap()).unwrap();
}

#[test]
fn a_machine_that_stays_serves_one_user_after_the_other() {
    let directory = TempDir::new().unwrap();
    let share = TempDir::new().unwrap();
    let spec = VmSpec { share_dir: Some(share.path().to_owned()), ..spec() };
    let mut vm = Vm::boot_detached(directory.path(), &kernel(), &spec).unwrap_or_else(|error| panic!("{error}"));
    vm.run_ok(&GuestCommand::shell("echo kept > /tmp/file")).unwrap();
    for round in 0..10 {
        let left = vm.spawn(&GuestCommand::new(["sleep", "1000000000"])).unwrap();
        std::mem::forget(left);
        let busy = Vm::attach(directory.path()).unwrap_err();
        assert!(matches!(busy, Error::Busy(_)), "{busy}");
        drop(vm);
        vm = Vm::attach(directory.path()).unwrap_or_else(|error| panic!("{error}"));
        // What the last user left is killed, and its end is not taken for that of a command of this one.
        let gone = "while pgrep -x sleep; do sleep 0.1; done";
        vm.run_ok(&GuestCommand::shell(gone)).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    // Its files are in memory, so this is the same boot.
    assert_eq!(vm.run_ok(&GuestCommand::new(["cat", "/tmp/file"])).unwrap(), "kept\n");
    vm.shutdown().unwrap();
    assert!(Vm::attach(directory.path()).is_err());
}
