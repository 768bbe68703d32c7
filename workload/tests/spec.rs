//! The description of a load: what is read is what was written, and what makes no sense is refused with its place.

use ekiden_workload::{Device, Group, HintWord, Limit, Report, Step, TaskReport, TaskSpec, WaitMode, Workload};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn mode() -> impl Strategy<Value = WaitMode> {
    let then_block = any::<u64>().prop_map(|spin_ns| WaitMode::SpinThenBlock { spin_ns });
    prop_oneof![Just(WaitMode::Block), Just(WaitMode::Spin), then_block]
}

fn waiting() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<u32>(), mode()).prop_map(|(lock, mode)| Step::Lock { lock, mode }),
        any::<u32>().prop_map(|lock| Step::Unlock { lock }),
        (0..3_u32, any::<u32>(), mode()).prop_map(|(barrier, parties, mode)| Step::Barrier { barrier, parties, mode }),
        (any::<u32>(), option::of(any::<u32>())).prop_map(|(condition, lock)| Step::Await { condition, lock }),
        any::<u32>().prop_map(|condition| Step::Signal { condition }),
        any::<u32>().prop_map(|condition| Step::Broadcast { condition }),
        (0..3_u32).prop_map(|device| Step::Io { device }),
        (any::<u32>(), any::<u64>(), any::<bool>()).prop_map(|(timer, period_ns, restart)| Step::Timer {
            timer,
            period_ns,
            restart
        }),
        (0..3_u32, vec(hint_word(), 0..70), any::<bool>()).prop_map(|(queue, hint, ring)| Step::WriteHint {
            queue,
            hint,
            ring
        }),
        (0..3_u32).prop_map(|queue| Step::ReadNotice { queue }),
        any::<u32>().prop_map(|cpu| Step::CpuOffline { cpu }),
        any::<u32>().prop_map(|cpu| Step::CpuOnline { cpu }),
    ]
}

fn hint_word() -> impl Strategy<Value = HintWord> {
    prop_oneof![
        any::<u32>().prop_map(HintWord::Value),
        Just(HintWord::OwnPid),
        any::<u32>().prop_map(|pipe| HintWord::Held { pipe })
    ]
}

fn group() -> impl Strategy<Value = Group> {
    let limit = option::of((any::<u64>(), any::<u64>()));
    ("[ab]", any::<u32>(), limit).prop_map(|(name, weight, limit)| {
        let limit = limit.map(|(quota_ns, period_ns)| Limit { quota_ns, period_ns });
        Group { name, weight, limit }
    })
}

fn device() -> impl Strategy<Value = Device> {
    (any::<u32>(), any::<u64>(), any::<bool>()).prop_map(|(servers, service_ns, exponential)| Device {
        servers,
        service_ns,
        exponential,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(|ns| Step::Run { ns }),
        any::<u64>().prop_map(|ns| Step::RunFor { ns }),
        any::<u64>().prop_map(|ns| Step::Sleep { ns }),
        any::<u32>().prop_map(|pipe| Step::PipeWrite { pipe }),
        any::<u32>().prop_map(|pipe| Step::PipeRead { pipe }),
        any::<i32>().prop_map(|nice| Step::SetNice { nice }),
        option::of(vec(any::<u32>(), 0..4)).prop_map(|cpus| Step::SetAffinity { cpus }),
        waiting(),
        Just(Step::Yield),
        Just(Step::Wait),
        Just(Step::Exec),
        Just(Step::Mark),
        Just(Step::Exit),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(|program| Step::Fork { program }),
            (any::<u64>(), vec(inner.clone(), 0..5)).prop_map(|(times, steps)| Step::Repeat { times, steps }),
            vec(inner.clone(), 0..5).prop_map(|steps| Step::Forever { steps }),
            (any::<u32>(), any::<u64>(), vec(inner.clone(), 0..5)).prop_map(|(pipe, spin_ns, idle)| Step::PipePoll {
                pipe,
                spin_ns,
                idle
            }),
            (any::<u32>(), any::<u32>(), vec(inner, 0..5)).prop_map(|(pipe, at_least, steps)| Step::IfHeld {
                pipe,
                at_least,
                steps
            }),
        ]
    })
}

fn workload() -> impl Strategy<Value = Workload> {
    let affinity = option::of(vec(any::<u32>(), 0..4));
    let who = ("[a-z]{1,8}", any::<u32>(), any::<i32>(), affinity, option::of("[ab]"));
    let task = (who, any::<u64>(), vec(step(), 0..6)).prop_map(|(who, start_ns, program)| {
        let (name, count, nice, affinity, group) = who;
        TaskSpec { name, count, nice, affinity, group, start_ns, program }
    });
    (".*", any::<u32>(), option::of(any::<u64>()), vec(group(), 0..3), vec(device(), 0..2), vec(task, 0..4)).prop_map(
        |(name, cpus, duration_ns, groups, devices, tasks)| Workload {
            name,
            cpus,
            duration_ns,
            groups,
            devices,
            tasks,
        },
    )
}

proptest! {
    #[test]
    fn any_load_reads_as_it_was_written(load in workload()) {
        let read: Workload = serde_json::from_str(&load.to_json()).unwrap();
        prop_assert_eq!(read, load);
    }

    #[test]
    fn any_load_is_accepted_or_refused_in_words(load in workload()) {
        if let Err(error) = load.check() {
            prop_assert!(error.to_string().contains("cannot run: "), "{}", error);
        } else {
            prop_assert!(!load.tasks.is_empty() && load.cpus > 0);
        }
    }

    #[test]
    fn any_report_reads_as_it_was_written(
        counts in vec(any::<u64>(), 6), maybe in vec(option::of(any::<u64>()), 4), marks_ns in vec(any::<u64>(), 0..5)
    ) {
        let task = TaskReport {
            name: "task".into(),
            cpu_ns: counts[0],
            start_ns: maybe[0],
            finish_ns: maybe[1],
            voluntary_switches: counts[1],
            involuntary_switches: counts[2],
            wait_ns: maybe[2],
            migrations: maybe[3],
            marks_ns,
            forked: counts[3],
            forked_cpu_ns: counts[4],
            ..TaskReport::default()
        };
        let report = Report { workload: "load".into(), scheduler: None, wall_ns: counts[5], zero_ns: None, tasks: vec![task] };
        prop_assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }
}

fn refusal(json: &str) -> String {
    Workload::parse(json).expect_err("this load should be refused").to_string()
}

#[test]
fn a_load_reads_as_a_person_would_write_it() {
    let load = Workload::parse(
        r#"{ "name": "two", "cpus": 2, "duration_ns": 5000000, "tasks": [
            { "name": "hog", "count": 2, "program": [{ "forever": { "steps": [{ "run": { "ns": 1000 } }] } }] },
            { "name": "nap", "nice": 5, "affinity": [1], "start_ns": 7, "program": ["yield", { "sleep": { "ns": 9 } },
              { "set_affinity": {} }, "exit"] } ] }"#,
    )
    .unwrap();
    let hog = TaskSpec::new("hog", vec![Step::forever([Step::Run { ns: 1_000 }])]).copies(2);
    let nap = vec![Step::Yield, Step::Sleep { ns: 9 }, Step::SetAffinity { cpus: None }, Step::Exit];
    let nap = TaskSpec { start_ns: 7, ..TaskSpec::new("nap", nap).nice(5).on([1]) };
    assert_eq!(load, Workload::new("two", 2, [hog, nap]).lasting(5_000_000));
    let names: Vec<String> = load.instances().map(|(name, _)| name).collect();
    assert_eq!(names, ["hog.0", "hog.1", "nap"]);
}

#[test]
fn bad_json_is_refused_with_line_and_column() {
    assert!(refusal("{\n  \"name\": \"x\",\n  oops").contains("line 3 column 3"));
    let unknown_step = "{\"name\":\"x\",\"cpus\":1,\"tasks\":[\n{\"name\":\"t\",\"program\":[\"snooze\"]}]}";
    let why = refusal(unknown_step);
    assert!(why.contains("unknown variant `snooze`") && why.contains("line 2"), "{why}");
    assert!(refusal(r#"{"name":"x","cpus":1,"tasks":[],"colour":1}"#).contains("unknown field `colour`"));
}

#[test]
fn what_makes_no_sense_is_refused_with_task_and_step() {
    let load =
        |program: &str| format!(r#"{{"name":"x","cpus":2,"tasks":[{{"name":"t","program":["yield",{program}]}}]}}"#);
    let place = "task `t`, step 1";
    for (program, why) in [
        (r#"{"set_nice":{"nice":20}}"#, "nice value 20"),
        (r#"{"set_affinity":{"cpus":[2]}}"#, "CPU 2 in a load for 2 CPUs"),
        (r#"{"set_affinity":{"cpus":[]}}"#, "no CPUs"),
        (r#"{"forever":{"steps":[{"run":{"ns":1}}]}}"#, "set `duration_ns`"),
        (r#"{"repeat":{"times":2,"steps":[{"set_nice":{"nice":-21}}]}}"#, "step 1, step 0: nice value -21"),
        (r#"{"pipe_read":{"pipe":4294967295}}"#, "names a pipe above"),
    ] {
        let refused = refusal(&load(program));
        assert!(refused.contains(why), "{refused}");
        assert!(refused.contains(place) || why.contains("pipe"), "{refused}");
    }
    assert!(Workload::parse(&load(r#"{"run":{"ns":1}}"#)).is_ok());
}

#[test]
fn loops_in_which_no_time_passes_and_endless_forking_are_refused() {
    let forever = |steps: Vec<Step>| Workload::new("x", 1, [TaskSpec::new("t", vec![Step::forever(steps)])]).lasting(1);
    let why = |steps| forever(steps).check().unwrap_err().to_string();
    assert!(why(vec![]).contains("take no time"));
    assert!(why(vec![Step::Mark, Step::Run { ns: 0 }]).contains("take no time"));
    assert!(why(vec![Step::Run { ns: 9 }, Step::fork([])]).contains("never waits"));
    assert!(forever(vec![Step::Run { ns: 9 }, Step::fork([]), Step::Wait]).check().is_ok());
}

#[test]
fn loads_that_are_empty_doubled_too_large_or_too_deep_are_refused() {
    let task = || TaskSpec::new("t", vec![]);
    let why = |load: Workload| load.check().unwrap_err().to_string();
    assert!(why(Workload::new("x", 1, [])).contains("no tasks"));
    assert!(why(Workload::new("x", 0, [task()])).contains("at least one CPU"));
    assert!(why(Workload::new("x", 1, [task(), task()])).contains("two tasks are called `t`"));
    assert!(why(Workload::new("x", 1, [task().copies(0)])).contains("`count` is 0"));
    assert!(why(Workload::new("x", 1, [task().copies(u32::MAX)])).contains("more than 4194304 tasks"));
    let deep = (0..20).fold(Step::Yield, |inner, _| Step::repeat(2, [inner]));
    assert!(why(Workload::new("x", 1, [TaskSpec::new("t", vec![deep])])).contains("nested deeper"));
}
