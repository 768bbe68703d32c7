//! What takes long of the live checker: no false alarm, however long it watches any load of the kernel's own scheduler and of
//! policies that balance.
//!
//! `EKIDEN_WATCH_MINUTES=10 cargo test -p ekiden-kernel-tests --test guests no_false_alarm -- --ignored` watches each load that long
//! under each scheduler; `no_false_alarm_beside_fork` only that load, `EKIDEN_WATCH_ONLY=fork+build` the two at a time, and
//! `EKIDEN_WATCH_UNDER=default,wfq` only under these schedulers.

use std::{env, path::PathBuf, process::Command, time::Duration};

use crate::{
    pool::Test,
    test_guest::{self, Machine, TestGuest},
};
use ekiden_vm::VmSpec;

/// A test for each load.
pub(crate) fn tests() -> Vec<Test> {
    let test = |(name, load): (String, String)| Test {
        name: format!("no_false_alarm_beside_{}", name.replace(['-', '+'], "_")).leak(),
        machine: Machine::Alarms,
        seconds: 600,
        is_ignored: true,
        run: Box::leak(Box::new(move |guest: &TestGuest| has_no_false_alarm(guest, &name, &load))),
    };
    wanted().into_iter().map(test).collect()
}

/// stress-ng's scheduler stressors (`stress-ng --class 'scheduler?'`), without `softlockup`, which keeps all CPUs from all other tasks,
/// so that the kernel reports lockups, and `mmapfork` and `vforkmany`, which run until the guest is out of memory.
const STRESSORS: &str = "\
    affinity clone close cyclic daemon dnotify eventfd exec exit-group fanotify fault fifo fork forkheavy futex \
    hrtimers inotify kill loadavg mq msg mutex nanosleep netlink-proc netlink-task nice poll pthread race-sched \
    resched schedpolicy sem sem-sysv session sleep spawn switch tee vfork wait yield zombie";

/// How long it lasts by the guest's clock.
fn seconds() -> u64 {
    let minutes = env::var("EKIDEN_WATCH_MINUTES")
        .map_or(1.0, |minutes| minutes.parse().expect("EKIDEN_WATCH_MINUTES is a number"));
    (60.0_f64 * minutes).round() as u64
}

/// The loads: a name, and a line for the guest's shell. More tasks than CPUs, so that there is something to balance.
fn loads(seconds: u64) -> Vec<(String, String)> {
    let stress = |name: &str| {
        // Stressors for which the guest has too little memory by default, or too few CPUs.
        let most = match name {
            "clone" => "--clone-max 64",
            "forkheavy" => "--forkheavy-procs 64",
            "zombie" => "--zombie-max 64",
            "pthread" => "--pthread-max 64",
            "loadavg" => "--loadavg-max 64",
            "sleep" => "--sleep-max 16",
            _ => "",
        };
        // Real-time threads, which would leave this slow machine nothing for others.
        let workers = if name == "mutex" { 2 } else { 6 };
        // Stressors that refuse to run as root.
        let program = match name {
            "exec" | "spawn" => {
                "chmod a+rwx /tmp; cd /tmp; exec start-stop-daemon -S -c 65534:65534 -x /bin/stress-ng --"
            }
            _ => "exec stress-ng",
        };
        (name.to_owned(), format!("{program} --{name} {workers} {most} --timeout {seconds} --quiet"))
    };
    let until = |work: &str| {
        format!("end=$(($(date +%s)+{seconds})); while [ $(date +%s) -lt $end ]; do {work} || exit 1; done")
    };
    // A C compiler without headers: a file of sixty functions, again and again.
    let function = "int fN(int x) { for (int i = 0; i < N; i++) x += (x * i) ^ (x >> 3) ^ N; return x; }";
    let source = format!("for n in $(seq 60); do echo '{function}' | sed s/N/$n/g; done > /tmp/source.c");
    let objects = "%.o: /tmp/source.c ; @gcc -B/bin/ -ffreestanding -O2 -c $< -o $@";
    let build = format!(
        "{source}; echo '{objects}' > /tmp/rules; cd /tmp; {}",
        until("make -r -s -B -j6 -f rules $(for n in $(seq 24); do echo $n.o; done)")
    );
    let hackbench = until("ekiden-load messaging --groups 5 --loops 20 --threads");
    let others = [("hackbench".to_owned(), hackbench), ("build".to_owned(), build)];
    others.into_iter().chain(STRESSORS.split(' ').map(stress)).collect()
}

/// The loads that are asked for.
fn wanted() -> Vec<(String, String)> {
    let all = loads(seconds());
    let Ok(only) = env::var("EKIDEN_WATCH_ONLY") else { return all };
    let line = |name: &str| {
        let load = all.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("there is no load {name}"));
        format!("({}) & ", load.1)
    };
    only.split(',').map(|names| (names.to_owned(), names.split('+').map(line).collect::<String>() + "wait")).collect()
}

/// The kernel's own scheduler, and policies: FIFO with stealing is what the faulty one is as long as it is not faulty.
fn schedulers() -> Vec<String> {
    let wanted = env::var("EKIDEN_WATCH_UNDER").unwrap_or("default,faulty,wfq".to_owned());
    wanted.split(',').map(str::to_owned).collect()
}

/// What the guest needs of this machine.
fn programs() -> Vec<PathBuf> {
    let compiler = Command::new("gcc").arg("-print-prog-name=cc1").output().expect("there is a gcc");
    let compiler = String::from_utf8(compiler.stdout).expect("gcc prints a path");
    ["/usr/bin/stress-ng", "/usr/bin/make", "/usr/bin/gcc", "/usr/bin/as", compiler.trim()].map(PathBuf::from).into()
}

/// A slow one: ten minutes of its clock take a few of ours. With less memory, some of the loads are killed. Where a CPU does eight
/// million instructions a second, what makes huge pages is preempted as a reader of RCU, with nice 19, for more than a minute, and RCU's
/// own thread waits for seconds behind the real-time threads of a load: so there are no huge pages, and the kernel waits for longer before
/// it calls that a stall.
pub(crate) fn machine() -> VmSpec {
    let spec = test_guest::spec();
    let cmdline = spec.cmdline + " transparent_hugepage=never rcupdate.rcu_cpu_stall_timeout=300";
    VmSpec { cpus: 4, memory_mib: 4096, icount_shift: 5, programs: programs(), cmdline, ..spec }
}

fn has_no_false_alarm(guest: &TestGuest, name: &str, load: &str) {
    std::fs::write(guest.host("load"), load).unwrap();
    let mut wrong = Vec::new();
    for scheduler in schedulers() {
        let is_default = scheduler == "default";
        let policy = if is_default { String::new() } else { format!("--policy {scheduler}") };
        let guest_test = format!("beside --modules /lab {policy} -- sh /host/load");
        // Timers that are programmed all the time take an emulator long.
        let report = &guest.guest_test_within(&guest_test, Duration::from_secs(600 + 10 * seconds()))[0];
        println!("{name} under {scheduler}: {report}");
        // Less often than every two seconds only if the load ended early, or while it watched.
        let was_watched = report["counts"]["looks"].as_u64().unwrap() > seconds() / 2;
        let was_scheduler = report["scheduler"].is_null() == is_default;
        if report["findings"] != serde_json::json!([]) || !was_watched || !was_scheduler {
            wrong.push(format!("{name} under {scheduler}: {report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
