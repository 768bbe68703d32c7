//! What a booted machine promises. These tests boot stock kernels; they need `cargo build -p ekiden-guest` first.

use ekiden_vm::{
    Cache, Error, GuestCommand, Kernel, Mode, Qemu, Running, Scratch, Size, Status, Stopped, Vm, VmSpec,
    fetch_newest_passing,
};
use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tempfile::TempDir;

fn kernel() -> Kernel {
    let cache = Cache::from_env().unwrap();
    fetch_newest_passing(&cache, &mut |line| eprintln!("{line}")).unwrap_or_else(|error| panic!("{error}"))
}

/// Nothing is measured here, so the guest's clock may run ahead of its instructions. Turns are fair: beside the busy loop of one test, a
/// CPU that waited for a lock with interrupts off had no turn any more in an older emulator, once in some sixty runs.
fn spec() -> VmSpec {
    VmSpec { icount_shift: 3, fair_turns: true, ..VmSpec::default() }
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
    let gone = "while ps | grep '[s]leep 100000000[01]'; do sleep 0.1; done";
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

const SIZE: Size = Size { rows: 33, columns: 111 };

fn in_terminal(vm: &Vm, line: &str) -> Running {
    vm.spawn(&GuestCommand::shell(line).terminal(SIZE)).unwrap()
}

#[test]
fn a_command_in_a_terminal_knows_its_size_and_reads_what_is_typed() {
    let (vm, _) = &*shared();
    let line = "trap 'echo changed' WINCH; tty; stty size; test -t 2 && echo three; \
                until read -r word; do :; done; echo \"<$word>\"; stty size; read -r word; exit 3";
    let mut running = in_terminal(vm, line);
    running.wait_for("three").unwrap();
    let terminal = running.terminal();
    // The later one counts, and comes before what is typed after it.
    for size in [Size { rows: 0, columns: 0 }, Size { rows: 1, columns: 9 }, Size { rows: 44, columns: 122 }] {
        terminal.resize(size).unwrap();
    }
    terminal.input(b"").unwrap();
    terminal.input("日本\r".as_bytes()).unwrap();
    running.wait_for("44 122").unwrap();
    terminal.input(b"\x04").unwrap();
    let output = running.wait().unwrap();
    assert_eq!(output.status, Status::Code(3));
    let (seen, error) = (output.stdout, output.stderr);
    assert!(seen.starts_with("/dev/pts/") && seen.contains("\r\n33 111\r\nthree\r\n"), "{seen:?}");
    assert!(seen.contains("changed\r\n") && seen.contains("<日本>\r\n44 122\r\n"), "{seen:?}");
    assert_eq!(error, "");
}

#[test]
fn ctrl_c_in_a_terminal_ends_what_is_in_the_foreground_but_not_the_shell() {
    let (vm, _) = &*shared();
    let mut shell = vm.spawn(&GuestCommand::new(["sh", "-i"]).terminal(SIZE)).unwrap();
    let terminal = shell.terminal();
    terminal.input(b"echo $((6 * 7)); sleep 1000000002\r").unwrap();
    shell.wait_for("42").unwrap();
    vm.run_ok(&GuestCommand::shell("until ps | grep '[s]leep 1000000002'; do sleep 0.1; done")).unwrap();
    terminal.input(b"\x03").unwrap();
    terminal.input(b"echo $? $((7 * 8)); exit 5\r").unwrap();
    shell.wait_for("130 56").unwrap();
    assert_eq!(shell.wait().unwrap().status, Status::Code(5));
}

#[test]
fn a_signal_reaches_all_that_runs_in_a_terminal() {
    let (vm, _) = &*shared();
    let gone = "while ps | grep '[s]leep 100000000[34]'; do sleep 0.1; done";
    // Sent before the terminal's session exists, perhaps.
    let early = in_terminal(vm, "sleep 1000000003");
    early.signal(15).unwrap();
    assert_eq!(early.wait().unwrap().status, Status::Signal(15));
    // Each in a group of its own, as job control wants it.
    let mut jobs = in_terminal(vm, "set -m; sleep 1000000003 & sleep 1000000004 & echo u''p; read -r line");
    jobs.wait_for("up").unwrap();
    jobs.signal(15).unwrap();
    assert_eq!(jobs.wait().unwrap().status, Status::Signal(15));
    vm.run_ok(&GuestCommand::shell(gone)).unwrap();
    // An interactive shell ignores the one, but not that its terminal is gone.
    let mut shell = vm.spawn(&GuestCommand::new(["sh", "-i"]).terminal(SIZE)).unwrap();
    shell.terminal().input(b"echo $((6 * 7))\r").unwrap();
    shell.wait_for("42").unwrap();
    shell.signal(15).unwrap();
    shell.terminal().input(b"echo $((7 * 8))\r").unwrap();
    shell.wait_for("56").unwrap();
    shell.signal(1).unwrap();
    assert_eq!(shell.wait().unwrap().status, Status::Signal(1));
    let mut dropped = in_terminal(vm, "set -m; sleep 1000000003 & echo u''p; trap '' TERM HUP; sleep 1000000004");
    dropped.wait_for("up").unwrap();
    drop(dropped);
    vm.run_ok(&GuestCommand::shell(gone)).unwrap();
}

#[test]
fn long_output_of_a_terminal_arrives_whole_and_unread_input_holds_up_no_other() {
    let (vm, _) = &*shared();
    let output = in_terminal(vm, "seq 1 60000").wait().unwrap();
    let expected: String = (1..=60_000).map(|number| format!("{number}\r\n")).collect();
    assert!(output.status.success() && output.stdout == expected, "{} bytes", output.stdout.len());

    let mut deaf = in_terminal(vm, "stty raw -echo; echo u''p; sleep 1000000005");
    deaf.wait_for("up").unwrap();
    let terminal = deaf.terminal();
    for _ in 0..4000 {
        terminal.input(&[b'x'; 64]).unwrap();
    }
    vm.run_ok(&GuestCommand::new(["true"])).unwrap();
    let error = deaf.wait().unwrap_err().to_string();
    assert!(error.contains("too much was typed"), "{error}");

    let missing = vm.run(&GuestCommand::new(["no-such-program"]).terminal(SIZE)).unwrap();
    assert!(missing.status == Status::Code(127) && missing.stdout.contains("no-such-program"), "{missing:?}");
    let piped = vm.spawn(&GuestCommand::new(["sleep", "1000000005"])).unwrap();
    piped.terminal().input(b"x").unwrap();
    let error = piped.wait().unwrap_err().to_string();
    assert!(error.contains("it has no terminal"), "{error}");
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
    // The machine's files are kept for the reader of the error.
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
        let left = GuestCommand::new(["sleep", "1000000000"]);
        let left = if round % 2 == 0 { left } else { left.terminal(SIZE) };
        std::mem::forget(vm.spawn(&left).unwrap());
        let busy = Vm::attach(directory.path()).unwrap_err();
        assert!(matches!(busy, Error::Busy { .. }), "{busy}");
        drop(vm);
        vm = Vm::attach(directory.path()).unwrap_or_else(|error| panic!("{error}"));
        // What the last user left is killed, and its end is not taken for that of a command of this one.
        let gone = "while pidof sleep; do sleep 0.1; done";
        vm.run_ok(&GuestCommand::shell(gone)).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    // Its files are in memory, so this is the same boot.
    assert_eq!(vm.run_ok(&GuestCommand::new(["cat", "/tmp/file"])).unwrap(), "kept\n");
    vm.shutdown().unwrap();
    assert!(Vm::attach(directory.path()).is_err());
}

/// Processor time of each thread of a process, in clock ticks.
fn threads(pid: i32) -> Vec<(String, u64)> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let ticks = |stat: &str| -> Option<u64> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    };
    entries
        .filter_map(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), ticks(&stat)?))
        })
        .collect()
}

#[test]
fn parallel_cpus_run_at_once_each_in_a_thread_of_the_emulator() {
    let mut say = |line: &str| eprintln!("{line}");
    let cache = Cache::from_env().unwrap();
    let qemu = Qemu::prepare(&cache, Mode::Parallel, false, &mut say).unwrap_or_else(|error| panic!("{error}"));
    assert!(qemu.has_threads(), "{qemu:?}");
    let spec = VmSpec { cpus: 4, mode: Mode::Parallel, ..VmSpec::default() };
    let vm = Vm::boot(&kernel(), &spec).unwrap_or_else(|error| panic!("{error}"));
    let before = threads(vm.qemu_pid());
    // Each counts on a CPU of its own until all four have counted enough.
    let loops = "for cpu in 0 1 2 3; do taskset -c $cpu sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; \
                 echo done; while [ ! -e /tmp/over ]; do :; done' & done | \
                 { for n in 1 2 3 4; do read -r line; echo $line; done; touch /tmp/over; }; nproc";
    assert_eq!(vm.run_ok(&GuestCommand::shell(loops)).unwrap(), "done\ndone\ndone\ndone\n4\n");
    let after = threads(vm.qemu_pid());
    let ticks = |thread: &str| before.iter().find(|(name, _)| name == thread).map_or(0, |(_, ticks)| *ticks);
    let busy = after.iter().filter(|(thread, now)| now - ticks(thread) >= 5).count();
    assert!(busy >= 4, "{busy} threads were busy: {before:?}, {after:?}");
    // There has been no policy in this guest: a timer that it lost is the machine's (docs/virtual-machines.md).
    let is_machines = vm.console().has_lost_timer();
    assert!(is_machines || vm.console().findings().is_empty(), "{:?}", vm.console().findings());
    vm.shutdown().unwrap();
}

#[test]
fn a_hung_machine_is_stopped_by_force() {
    let directory = TempDir::new().unwrap();
    let spec = VmSpec { mode: Mode::Parallel, ..VmSpec::default() };
    let vm = Vm::boot_detached(directory.path(), &kernel(), &spec).unwrap_or_else(|error| panic!("{error}"));
    let pid = vm.qemu_pid();
    let busy = Vm::stop(directory.path(), false).unwrap_err().to_string();
    assert!(busy.contains(&format!("(PID {}, since ", std::process::id())), "{busy}");
    drop(vm);
    assert_eq!(Vm::look(directory.path()).unwrap(), (pid, None));
    // An emulator that does nothing does not answer.
    signal("STOP", pid);
    let stopped = Vm::stop(directory.path(), false).unwrap();
    assert_eq!(stopped, Some(Stopped::Forced("it did not answer".into())));
    assert!(!runs(pid), "QEMU is left");
    assert_eq!(Vm::stop(directory.path(), false).unwrap(), None);
}

fn pid_in(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok()?.split_whitespace().next()?.parse().ok()
}

#[test]
fn a_killed_owner_leaves_no_process_and_no_file_behind() {
    let share = TempDir::new().unwrap();
    let example = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/boot");
    let mut owner = std::process::Command::new(example)
        .args(["--share", share.path().to_str().unwrap(), "sleep", "1000"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let place = Cache::from_env().unwrap().path().join("guests");
    let holder = format!("\"pid\":{},", owner.id());
    let directory = || {
        let mut locks = fs::read_dir(&place).into_iter().flatten().flatten().map(|entry| entry.path());
        let lock = locks.find(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(&holder)));
        lock.map(|lock| lock.with_extension(""))
    };
    let directory = within(60, || directory().filter(|directory| directory.join("qemu.pid").exists()));
    let pids = ["qemu.pid", "share.pid"].map(|name| within(10, || pid_in(&directory.join(name))));
    assert!(pids.iter().all(|pid| runs(*pid)));
    owner.kill().unwrap();
    owner.wait().unwrap();
    within(10, || pids.iter().all(|pid| !runs(*pid)).then_some(()));
    // The next one tidies up after it.
    drop(Scratch::new().unwrap());
    assert!(!directory.exists() && !directory.with_extension("lock").exists());
}

fn within<T>(seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "not within {seconds} s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn signal(name: &str, pid: i32) {
    let status = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn parallel_cpus_outlive_changes_of_the_kernels_code() {
    let vm = Vm::boot(&kernel(), &VmSpec { cpus: 4, mode: Mode::Parallel, ..VmSpec::default() }).unwrap();
    assert!(vm.problems().is_empty(), "{:?}", vm.problems());
    // A static key is switched again and again, beside tasks that run through it.
    let toggle = "for i in 1 2 3 4 5 6 7 8; do (while :; do usleep 200; done) & done; \
                  while :; do for on in 1 0; do echo $on >/proc/sys/kernel/sched_schedstats; done; done";
    let end = vm.run(&GuestCommand::shell(toggle).timeout(Duration::from_secs(15)));
    assert!(matches!(end, Err(Error::Timeout { .. })), "{end:?}");
    assert_eq!(vm.console().findings(), Vec::<String>::new());
    // How often it happens is luck.
    let counts = "cd /sys/module/stale_int3/parameters && cat repaired retried";
    println!("repaired, retried: {}", vm.run_ok(&GuestCommand::shell(counts)).unwrap().replace('\n', " "));
    vm.shutdown().unwrap();
}

/// What `docs/virtual-machines.md` says of QEMU, without any module: how often it happens is luck, and one day it may be mended.
#[test]
#[ignore = "it loses guests for minutes"]
fn a_fault_of_the_emulator_is_told_from_others() {
    let vm = Vm::boot(&kernel(), &VmSpec { cpus: 4, mode: Mode::Parallel, ..VmSpec::default() }).unwrap();
    vm.run_ok(&GuestCommand::new(["rmmod", "stale_int3"])).unwrap();
    // With a pause, so that what the kernel prints of the place is not its next change.
    let toggle = "for i in 1 2 3 4 5 6 7 8; do (while :; do usleep 200; done) & done; \
                  while :; do for on in 1 0; do echo $on >/proc/sys/kernel/sched_schedstats; usleep 10000; done; done";
    let end = vm.run(&GuestCommand::shell(toggle).timeout(Duration::from_secs(600)));
    match end {
        Err(error @ Error::Gone { .. }) => {
            assert!(vm.console().has_emulator_fault(), "{}", vm.console().text());
            assert!(error.to_string().contains("fault of QEMU's own"), "{error}");
        }
        // Tasks of the guest can die of it, too.
        Err(_) if vm.console().has_emulator_fault() => {}
        end => assert!(matches!(end, Err(Error::Timeout { .. })) && vm.console().findings().is_empty(), "{end:?}"),
    }
}
