//! Loads run by real processes under this machine's own scheduler, through the binary, with expectations loose enough
//! for a busy machine.
#![cfg(all(target_os = "linux", feature = "exec"))]

use std::process::{Command, Output};

use ekiden_workload::builtin::{self, Where};
use ekiden_workload::checks::{all_finished, equal_shares, share_of};
use ekiden_workload::{Device, Group, HintWord, Report, Step, TaskSpec, WaitMode, Workload};

const MS: u64 = 1_000_000;

fn ekiden_load(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ekiden-load"))
        .args(arguments)
        .output()
        .expect("the binary is built with the tests")
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a load and gives its report, or what was said instead.
fn try_run(load: &Workload, more: &[&str]) -> Result<Report, String> {
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(file.path(), load.to_json()).unwrap();
    let output = ekiden_load(&[&["run", file.path().to_str().unwrap(), "--json"], more].concat());
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(words(&output.stderr)),
    }
}

fn run(load: &Workload) -> Report {
    try_run(load, &[]).unwrap()
}

/// A machine with one CPU cannot show what these tests are about, which is no reason to pass.
fn needs_two_cpus() {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    assert!(cpus > 1, "this test needs two CPUs, and may use {cpus}: run it where there are more");
}

#[test]
fn five_hogs_on_one_cpu_share_it() {
    let report = run(&builtin::fair_share(5, 500 * MS));
    equal_shares(&report, 0.25).unwrap();
    assert!((500 * MS..5_000 * MS).contains(&report.wall_ns), "{report}");
    assert!(report.tasks.iter().all(|task| task.finish_ns.is_none() && task.last_cpu == Some(0)), "{report}");
    assert!(report.cpu_ns() <= report.wall_ns * 11 / 10, "one CPU gave more than its time: {report}");
}

#[test]
fn the_lowest_of_five_comes_last() {
    let report = run(&builtin::weights(30 * MS));
    all_finished(&report).unwrap();
    let last = report.tasks.iter().max_by_key(|task| task.finish_ns).unwrap();
    assert_eq!((last.name.as_str(), last.nice), ("lowest", 19), "{report}");
}

#[test]
fn a_nice_task_has_the_smaller_share() {
    let report = run(&builtin::nice_pair(0, 5, 400 * MS));
    let share = share_of(&report, "nice0").unwrap();
    assert!((0.65..0.85).contains(&share), "{report}");
}

#[test]
fn ping_pong_on_one_cpu_leaves_it_for_each_message() {
    for place in [Where::SameCpu, Where::Across, Where::Anywhere] {
        if place == Where::Across {
            needs_two_cpus();
        }
        let report = run(&builtin::pipe(300, place));
        all_finished(&report).unwrap();
        let switches = |name| {
            let task = report.task(name).unwrap();
            task.voluntary_switches + task.involuntary_switches
        };
        if place == Where::SameCpu {
            // On one CPU neither gets its next byte unless it left the CPU to the other; pong needs none after its last.
            assert!(switches("ping") >= 300 && switches("pong") >= 299, "{report}");
            assert!(report.tasks.iter().all(|task| task.last_cpu == Some(0)), "{report}");
        }
    }
}

#[test]
fn every_message_of_every_group_arrives() {
    let report = run(&builtin::messaging(1, 2, 3, 3, 10));
    all_finished(&report).unwrap();
    assert_eq!(report.tasks.len(), 2 * (3 + 3));
}

#[test]
fn locks_barriers_and_conditions_work_between_processes() {
    for mode in [WaitMode::Block, WaitMode::Spin, WaitMode::SpinThenBlock { spin_ns: 20_000 }] {
        let work = Step::Run { ns: 300_000 };
        let alone = [Step::Lock { lock: 0, mode }, Step::Mark, work, Step::Yield, Step::Mark, Step::Unlock { lock: 0 }];
        let meet = Step::Barrier { barrier: 0, parties: 3, mode };
        let round = [alone.as_slice(), std::slice::from_ref(&meet)].concat();
        let late = |ms| vec![Step::Sleep { ns: ms * MS }, meet.clone(), Step::Mark, Step::repeat(3, round.clone())];
        let tasks = [1, 5, 20].map(|ms| TaskSpec::new(format!("after-{ms}"), late(ms)));
        let report = run(&Workload::new("meet", 1, tasks));
        all_finished(&report).unwrap();
        assert!(report.tasks.iter().all(|task| task.marks_ns[0] >= 20 * MS), "{mode:?}: {report}");
        // From lock to unlock there is only one.
        let held = report.tasks.iter().flat_map(|task| task.marks_ns[1..].chunks(2).map(|held| (held[0], held[1])));
        let mut held: Vec<(u64, u64)> = held.collect();
        held.sort_unstable();
        assert_eq!(held.len(), 9);
        assert!(held.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{mode:?}: {held:?}");
        let spun = report.task("after-1").unwrap().cpu_ns > 5 * MS;
        assert_eq!(spun, mode == WaitMode::Spin, "{mode:?}: {report}");
    }
    let lock = || Step::Lock { lock: 0, mode: WaitMode::Block };
    let waiter = vec![lock(), Step::Await { condition: 0, lock: Some(0) }, Step::Unlock { lock: 0 }];
    let waker =
        |ms| vec![Step::Sleep { ns: ms * MS }, lock(), Step::Broadcast { condition: 0 }, Step::Unlock { lock: 0 }];
    let tasks = [TaskSpec::new("waiter", waiter).copies(3), TaskSpec::new("waker", waker(20))];
    let report = run(&Workload::new("conditions", 1, tasks));
    all_finished(&report).unwrap();
    assert!(report.tasks.iter().all(|task| task.finish_ns >= Some(20 * MS)), "{report}");
}

#[test]
fn timers_and_work_for_a_time_end_when_they_should() {
    let tick = Step::Timer { timer: 0, period_ns: 5 * MS, restart: false };
    let child = Step::fork([tick.clone(), Step::Mark]);
    let program = vec![tick.clone(), tick, Step::Mark, Step::RunFor { ns: 10 * MS }, Step::Mark, child, Step::Wait];
    let report = run(&Workload::new("times", 1, [TaskSpec::new("task", program)]));
    let marks = &report.tasks[0].marks_ns;
    assert!(marks[0] >= 10 * MS && marks[1] >= 20 * MS && marks[2] >= 25 * MS, "{report}");
}

#[test]
fn a_device_serves_as_many_processes_at_once_as_it_has_servers() {
    let task = TaskSpec::new("task", vec![Step::repeat(2, [Step::Io { device: 0 }])]).copies(4);
    for exponential in [false, true] {
        let disk = Device { servers: 2, service_ns: 5 * MS, exponential };
        let report = run(&Workload::new("disk", 1, [task.clone()]).with_device(disk));
        all_finished(&report).unwrap();
        // Eight requests, two at a time.
        assert!(exponential || report.wall_ns >= 20 * MS, "{report}");
        assert!(report.tasks.iter().all(|task| task.cpu_ns < 5 * MS), "{report}");
    }
}

#[test]
fn what_only_the_simulator_can_do_is_refused_before_anything_starts() {
    let refused = |load: Workload| try_run(&load, &[]).unwrap_err();
    let task = |step| Workload::new("x", 1, [TaskSpec::new("t", vec![step])]);
    assert!(refused(task(Step::CpuOffline { cpu: 0 })).contains("cannot take CPUs out of the machine yet"));
    assert!(refused(task(Step::IfHeld { pipe: 0, at_least: 1, steps: vec![] })).contains("without reading yet"));
    let held = Step::WriteHint { queue: 0, hint: vec![HintWord::Held { pipe: 0 }], ring: false };
    assert!(refused(task(held)).contains("cannot say in a hint what a pipe holds yet"));
    let grouped = Workload::new("x", 1, [TaskSpec::new("t", vec![]).in_group("g")]).with_group(Group::new("g"));
    assert!(refused(grouped).contains("cannot be put into groups yet"));
}

#[test]
fn a_file_in_the_format_of_rt_app_runs() {
    let text = r#"{ "tasks": { "a": { "loop": 2, "run": 500, "resume": "b", },
        "b": { "loop": 1, "suspend": "b", "yield": "" } }, "global": { "gnuplot": true, "duration": 1 } }"#;
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let output = ekiden_load(&["run", file.path().to_str().unwrap(), "--json"]);
    assert!(output.status.success(), "{}", words(&output.stderr));
    assert!(words(&output.stderr).contains("(global.gnuplot): concerns what rt-app writes"));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.task("a").unwrap().finish_ns.is_some());
}

#[test]
fn sleepers_next_to_hogs_finish() {
    let report = run(&builtin::sleepers(1, 3, 10));
    all_finished(&report).unwrap();
    assert!(report.task("sleeper.0").unwrap().finish_ns >= Some(10 * MS), "{report}");
}

#[test]
fn no_storm_loses_a_task_or_a_child() {
    for seed in 0..4 {
        let load = builtin::churn(1, 6, 40, seed);
        let report = run(&load);
        all_finished(&report).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let forks = |task: &TaskSpec| task.program.iter().filter(|step| matches!(step, Step::Fork { .. })).count();
        assert_eq!(
            report.tasks.iter().map(|task| task.forked).sum::<u64>(),
            load.tasks.iter().map(forks).sum::<usize>() as u64
        );
    }
}

#[test]
fn a_task_forced_to_another_cpu_and_released_runs_on() {
    needs_two_cpus();
    let mut load = builtin::forced_move(2, 1_000 * MS);
    // A machine that is busy with others may give it a small part of its time only.
    load.tasks[0].program[0] = Step::Run { ns: 5 * MS };
    let report = run(&load);
    assert!(report.tasks.iter().all(|task| task.cpu_ns > MS), "{report}");
    assert_eq!(report.task("moved").unwrap().marks_ns.len(), 2);
}

#[test]
fn times_count_from_the_release_and_marks_are_in_order() {
    let program = vec![
        Step::Mark,
        Step::Sleep { ns: 5 * MS },
        Step::fork([Step::Run { ns: MS }, Step::fork([Step::Exec]), Step::Wait]),
        Step::Wait,
        Step::Mark,
        Step::repeat(3, [Step::Exit]),
        Step::Mark,
    ];
    let late = TaskSpec { start_ns: 20 * MS, ..TaskSpec::new("late", program) };
    let report = run(&Workload::new("late", 1, [late]));
    let task = report.task("late").unwrap();
    let [first_ns, second_ns] = task.marks_ns[..] else { panic!("2 marks expected: {:?}", task.marks_ns) };
    assert!(task.start_ns.unwrap() >= 20 * MS && first_ns >= task.start_ns.unwrap());
    assert!(second_ns >= first_ns + 5 * MS && task.finish_ns.unwrap() >= second_ns);
    assert!(report.wall_ns >= task.finish_ns.unwrap());
    assert_eq!((task.forked, task.forked_finished), (2, 2));
    assert!(task.forked_cpu_ns >= MS / 4, "{}", task.forked_cpu_ns);
}

#[test]
fn work_takes_about_the_cpu_time_it_names() {
    let program = vec![Step::SetNice { nice: 1 }, Step::SetAffinity { cpus: Some(vec![0]) }, Step::Run { ns: 50 * MS }];
    let report = run(&Workload::new("work", 1, [TaskSpec::new("work", program)]));
    let cpu_ns = report.tasks[0].cpu_ns;
    assert!((20 * MS..150 * MS).contains(&cpu_ns), "{cpu_ns}");
    assert_eq!(report.tasks[0].last_cpu, Some(0));
}

#[test]
fn a_task_that_waits_for_what_never_comes_is_named() {
    let well = TaskSpec::new("well", vec![Step::Run { ns: MS }]);
    let deaf = TaskSpec::new("deaf", vec![Step::PipeRead { pipe: 0 }]);
    let said = try_run(&Workload::new("stuck", 1, [well, deaf]), &["--watchdog", "1"]).unwrap_err();
    assert!(said.contains("not finished after 1000 ms: `deaf`, asleep"), "{said}");
    assert!(!said.contains("`well`"), "{said}");
}

#[test]
fn a_child_that_does_not_end_is_named_by_its_task() {
    let parent = TaskSpec::new("parent", vec![Step::fork([Step::PipeRead { pipe: 0 }])]);
    let said = try_run(&Workload::new("orphan", 1, [parent]), &["--watchdog", "1"]).unwrap_err();
    assert!(said.contains("`parent (child)`, 1 of its children"), "{said}");
}

#[test]
fn a_load_for_more_cpus_than_there_are_is_refused() {
    let said = try_run(&Workload::new("wide", 1_000, [TaskSpec::new("t", vec![])]), &[]).unwrap_err();
    assert!(said.contains("needs 1000 CPUs"), "{said}");
}

#[test]
fn a_bad_file_is_refused_with_its_name_and_the_place() {
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(file.path(), "{\n \"name\": 7 }").unwrap();
    let output = ekiden_load(&["run", file.path().to_str().unwrap()]);
    let said = words(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains(file.path().to_str().unwrap()) && said.contains("line 2 column 10"), "{said}");
    assert!(words(&ekiden_load(&["run", "no-such-load"]).stderr).contains("`ekiden-load list`"));
}

#[test]
fn ping_pong_and_messaging_are_timed_as_often_as_asked() {
    for arguments in [
        &["pipe", "--round-trips", "200", "--cpus", "0,0", "--repeat", "3", "--json"][..],
        &["messaging", "--groups", "2", "--pairs", "3", "--loops", "5", "--repeat", "3", "--json"],
        &["messaging", "--groups", "2", "--pairs", "3", "--loops", "5", "--repeat", "3", "--threads", "--json"],
    ] {
        let output = ekiden_load(arguments);
        assert!(output.status.success(), "{}", words(&output.stderr));
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let values: Vec<f64> =
            figures["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
        assert_eq!(values.len(), 3);
        let (min, median, max) = (figures["min"].as_f64(), figures["median"].as_f64(), figures["max"].as_f64());
        assert!(Some(0.0) < min && min <= median && median <= max, "{figures}");
        assert!(values.iter().all(|value| (min..=max).contains(&Some(*value))), "{figures}");
    }
}

#[test]
fn a_cpu_that_is_not_there_and_a_list_that_is_none_are_refused() {
    assert!(words(&ekiden_load(&["pipe", "--cpus", "0,999"]).stderr).contains("needs 1000 CPUs"));
    let output = ekiden_load(&["pipe", "--cpus", "0-1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(words(&output.stderr).contains("write for example 0,1"));
}

#[test]
fn class_sched_ext_is_entered_or_said_to_be_missing() {
    let has_class = std::path::Path::new("/sys/kernel/sched_ext").exists();
    for arguments in [
        &["pipe", "--round-trips", "10", "--ext"][..],
        &["run", "pipe", "--ext"],
        &["spin", "--seconds", "0.01", "--ext"],
        &["exec", "--ext", "--", "true"],
    ] {
        let output = ekiden_load(arguments);
        assert_eq!(output.status.success(), has_class, "{arguments:?}: {}", words(&output.stderr));
        if !has_class {
            assert!(words(&output.stderr).contains("no scheduling class SCHED_EXT"), "{}", words(&output.stderr));
        }
    }
}

#[test]
fn exec_gives_the_exit_status_of_the_program() {
    assert_eq!(ekiden_load(&["exec", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert!(words(&ekiden_load(&["exec", "--", "/no/such/program"]).stderr).contains("could not run"));
}

#[test]
fn spinning_tasks_use_their_cpu() {
    let output = ekiden_load(&["spin", "--tasks", "2", "--cpu", "0", "--seconds", "0.2", "--json"]);
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.tasks.len(), 2);
    assert!(report.tasks.iter().all(|task| task.cpu_ns > 2 * MS), "{report}");
}

#[test]
fn what_is_shown_of_a_load_is_the_load() {
    let shown = words(&ekiden_load(&["show", "weights"]).stdout);
    assert_eq!(Workload::parse(&shown).unwrap(), builtin::weights_test().0);
    let list = words(&ekiden_load(&["list"]).stdout);
    assert!(builtin::all(1).iter().all(|case| list.contains(&case.workload.name)), "{list}");
}

#[test]
fn a_process_with_several_threads_must_not_fork_tasks() {
    let load = builtin::pipe(1, Where::Anywhere);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| ekiden_workload::real::exec::execute(&load, &Default::default())).join().unwrap()
    });
    assert!(result.unwrap_err().to_string().contains("process with one thread"));
}
