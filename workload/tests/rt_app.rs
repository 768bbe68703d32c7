//! Loads in rt-app's format: what is modelled, what is refused and where, and that nothing is passed over in silence.

use ekiden_workload::rt_app::{self, Remark};
use ekiden_workload::{Group, Step, TaskSpec, WaitMode, Workload};
use proptest::prelude::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn read(text: &str) -> (Workload, Vec<Remark>) {
    rt_app::parse("test", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The steps of the only task, without the loop around them.
fn steps(events: &str) -> Vec<Step> {
    let (load, remarks) = read(&format!(r#"{{ "tasks": {{ "t": {{ "loop": 1, {events} }} }} }}"#));
    assert_eq!(remarks, []);
    load.tasks[0].program.clone()
}

fn refusal(text: &str) -> String {
    rt_app::parse("test", text).expect_err(text).to_string()
}

/// Why this task is refused.
fn of_task(task: &str) -> String {
    refusal(&format!("{{ \"tasks\": {{\n\"t\": {{ {task} }} }} }}"))
}

fn lock(lock: u32) -> Step {
    Step::Lock { lock, mode: WaitMode::Block }
}

#[test]
fn a_whole_file_is_read_with_all_that_rt_app_tolerates() {
    let text = r#"
/* Two players of a game, and a thread that the first one starts. */
{
    "tasks" : {
        "player" : {
            "instance" : 2, 'priority' : -5, "cpus" : [0, 3,], // two of them
            "delay" : 1500,
            "phases" : {
                "warm" : { "loop" : 3, "run" : 2000, "timer" : { "ref" : "unique", "period" : 10000 }, },
                "play" : { "cpus" : [1], "run" : 100, "run" : 200, "sleep0" : 50, "taskgroup" : "/game" },
            },
            "loop" : 4,
            "taskgroup" : "/game",
        },
        "once" : { "loop" : 1, "suspend" : , "yield" : "" },
    },
    "global" : { "duration" : 2, "default_policy" : "SCHED_OTHER", "pi_enabled" : False },
}"#;
    let (load, remarks) = read(text);
    assert_eq!(remarks, []);
    let on = |cpus: Option<Vec<u32>>| Step::SetAffinity { cpus };
    let warm = [Step::Run { ns: 2 * MS }, Step::Timer { timer: 0, period_ns: 10 * MS, restart: true }];
    let player = vec![Step::repeat(
        4,
        [
            on(Some(vec![0, 3])),
            Step::repeat(3, warm),
            on(Some(vec![1])),
            Step::Run { ns: 100 * US },
            Step::Run { ns: 200 * US },
            Step::Sleep { ns: 50 * US },
        ],
    )];
    let player = TaskSpec { start_ns: 1_500 * US, ..TaskSpec::new("player", player) };
    let player = player.copies(2).nice(-5).on([0, 3]).in_group("/game");
    let suspend = [lock(0), Step::Await { condition: 0, lock: Some(0) }, Step::Unlock { lock: 0 }];
    let once = TaskSpec::new("once", [suspend.as_slice(), &[Step::Yield]].concat());
    let expected = Workload::new("test", 4, [player, once]).with_group(Group::new("/game")).lasting(2_000 * MS);
    assert_eq!(load, expected);
}

#[test]
fn every_event_has_its_steps() {
    let wait = Step::Await { condition: 0, lock: Some(0) };
    assert_eq!(
        steps(r#""run_more": 7, "runtime2": 9, "sleep": 0"#),
        [Step::Run { ns: 7 * US }, Step::RunFor { ns: 9 * US }, Step::Sleep { ns: 0 }]
    );
    assert_eq!(
        steps(r#""lock": "m", "wait": {"ref": "c", "mutex": "m"}, "unlock": "m""#),
        [lock(0), wait.clone(), Step::Unlock { lock: 0 }]
    );
    assert_eq!(steps(r#""sync": {"ref": "c", "mutex": "m"}"#), [Step::Signal { condition: 0 }, wait]);
    assert_eq!(
        steps(r#""signal": "a", "broad": "b""#),
        [Step::Signal { condition: 0 }, Step::Broadcast { condition: 1 }]
    );
    assert_eq!(steps(r#""resume": "other""#), [lock(0), Step::Broadcast { condition: 0 }, Step::Unlock { lock: 0 }]);
    assert_eq!(
        steps(r#""timer": {"ref": "clock", "period": 5, "mode": "absolute"}"#),
        [Step::Timer { timer: 0, period_ns: 5 * US, restart: false }]
    );
    // A condition and the mutex of the same name are two things.
    assert_eq!(steps(r#""lock": "x", "signal": "y", "lock1": "y""#), [lock(0), Step::Signal { condition: 0 }, lock(1)]);
}

#[test]
fn values_that_may_be_left_out_may_be_left_out() {
    let suspend = [lock(0), Step::Await { condition: 0, lock: Some(0) }, Step::Unlock { lock: 0 }];
    for events in [r#""suspend""#, r#""suspend","#, r#""suspend": ,"#, r#""suspend": """#, r#""suspend": "t""#] {
        assert_eq!(steps(events), suspend);
    }
    // A timer without a period waits for nothing.
    assert_eq!(steps(r#""run": 1, "timer": { "ref": "u", "period": 0 }"#), [Step::Run { ns: US }]);
    let (_, remarks) = read(r#"{ "tasks": { "t": { "loop": 1, "run": 1 } }, "resources": 4 }"#);
    assert_eq!(remarks[0].place.path, "resources");
}

#[test]
fn a_barrier_waits_for_every_instance_of_every_task_that_names_it() {
    let text =
        r#"{ "tasks": { "a": { "loop": 1, "instance": 3, "barrier": "b" }, "c": { "loop": 1, "barrier": "b" } } }"#;
    let meet = Step::Barrier { barrier: 0, parties: 4, mode: WaitMode::Block };
    let (load, _) = read(text);
    assert!(load.tasks.iter().all(|task| task.program == [meet.clone()]));
    assert!(of_task(r#""loop": 1, "barrier": "b", "barrier1": "b""#).contains("names the barrier before"));
}

#[test]
fn a_forked_task_is_set_up_like_any_other() {
    let text = r#"{ "tasks": {
        "parent": { "loop": 1, "priority": 5, "fork": "child", "run": 1 },
        "child": { "loop": 2, "instance": 0, "delay": 3, "cpus": [1], "sleep": 4 } } }"#;
    let child = Step::fork([
        Step::SetNice { nice: 0 },
        Step::SetAffinity { cpus: Some(vec![1]) },
        Step::Sleep { ns: 3 * US },
        Step::repeat(2, [Step::Sleep { ns: 4 * US }]),
    ]);
    let parent = TaskSpec::new("parent", vec![child, Step::Run { ns: US }]).nice(5);
    assert_eq!(read(text).0, Workload::new("test", 2, [parent]));
    let selfish = r#"{ "tasks": { "a": { "loop": 1, "fork": "b" }, "b": { "loop": 1, "fork": "a" } } }"#;
    assert!(refusal(selfish).contains("would fork itself without end"), "{}", refusal(selfish));
    assert!(of_task(r#""loop": 1, "fork": "nobody""#).contains("no task `nobody`"));
}

#[test]
fn many_forks_of_many_forks_are_refused_before_they_fill_the_memory() {
    let fork = |to: &str| (0..60).map(|n| format!("\"fork{n}\": \"{to}\"")).collect::<Vec<_>>().join(", ");
    let task = |name: &str, to: &str| format!("\"{name}\": {{ \"loop\": 1, {} }}", fork(to));
    let tasks = [task("a", "b"), task("b", "c"), task("c", "d"), task("d", "e")].join(", ");
    let text = format!("{{ \"tasks\": {{ {tasks}, \"e\": {{ \"loop\": 1, \"run\": 1 }} }} }}");
    assert!(refusal(&text).contains("more than 1000000 events"), "{}", refusal(&text));
}

#[test]
fn keys_given_twice_keep_their_order_or_say_what_becomes_of_them() {
    let text = r#"{ "tasks": {
        "t": { "loop": 1, "run": 1, "sleep": 2, "run": 3, "loop": 9 },
        "t": { "loop": 1, "run": 4 } } }"#;
    let (load, remarks) = read(text);
    let run = |us: u64| Step::Run { ns: us * US };
    assert_eq!(load.tasks[0].program, [run(1), Step::Sleep { ns: 2 * US }, run(3)]);
    assert_eq!((load.tasks[1].name.as_str(), &load.tasks[1].program), ("t1", &vec![run(4)]));
    let said: Vec<String> = remarks.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "line 2, column 59 (tasks.t.loop): given before; the first counts",
            "line 3, column 9 (tasks.t): there is a task of this name already; this one is called `t1`",
        ]
    );
}

#[test]
fn what_changes_nothing_is_said() {
    let text = r#"{ "tasks": { "t": { "loop": 1, "run": 1, "mem": 1000, "iorun": 9, "colour": 1 } }, "resources": { "m": { "type": "mutex" } },
        "global": { "calibration": "CPU0", "lock_pages": true, "logdir": "./", "log_basename": "x", "log_size": 2,
        "ftrace": "none", "gnuplot": true, "io_device": "/dev/null", "mem_buffer_size": 4096,
        "cumulative_slack": false, "frag": 1 } } trailing"#;
    let (load, remarks) = read(text);
    let keys: Vec<&str> = remarks.iter().map(|remark| remark.place.path.as_str()).collect();
    assert_eq!(
        keys,
        [
            "tasks.t.mem",
            "tasks.t.iorun",
            "tasks.t.colour",
            "global.calibration",
            "global.lock_pages",
            "global.logdir",
            "global.log_basename",
            "global.log_size",
            "global.ftrace",
            "global.gnuplot",
            "global.cumulative_slack",
            "global.frag",
            "",
        ]
    );
    assert_eq!(load.tasks[0].program[1], Step::Run { ns: 100 });
}

#[test]
fn what_is_not_modelled_is_refused_with_its_place() {
    for (task, path, why) in [
        (r#""run": 1, "policy": "SCHED_FIFO""#, "policy", "not modelled"),
        (r#""run": 1, "policy": "SCHED_DEADLINE", "dl-runtime": 1"#, "policy", "not modelled"),
        (r#""run": 1, "policy": "other""#, "policy", "no scheduling policy"),
        (r#""run": 1, "dl-runtime": 1"#, "dl-runtime", "not modelled"),
        (r#""run": 1, "deadline": 1"#, "deadline", "not modelled"),
        (r#""run": 1, "util_min": 1"#, "util_min", "not modelled"),
        (r#""run": 1, "util_max": 1"#, "util_max", "not modelled"),
        (r#""run": 1, "nodes_membind": [0]"#, "nodes_membind", "not modelled"),
        (r#""run": 1, "membind_nodes": [0]"#, "membind_nodes", "not modelled"),
        (r#""run": 1, "taskgroup": "/a/b""#, "taskgroup", "not modelled"),
        (r#""run": 1, "taskgroup": "a""#, "taskgroup", "write `/a`"),
        (r#""run": 1, "priority": 20"#, "priority", "nice value 20"),
        (r#""run": 1, "cpus": [8192]"#, "cpus.0", "at most 8191"),
        (r#""run": 1, "cpus": 1"#, "cpus", "an integer where a list"),
        (r#""run": 1, "cpus": []"#, "cpus", "no CPUs"),
        (r#""run": 1.5"#, "run", "a number that is no integer where an integer should be"),
        (r#""run": -1"#, "run", "choose from 0"),
        (r#""run": 99999999999"#, "run", "choose from 0"),
        (r#""run": "#, "run", "nothing where an integer should be"),
        (r#""lock": 1"#, "lock", "an integer where a string should be"),
        (r#""wait": "c""#, "wait", "a string where an object should be"),
        (r#""timer": { "ref": "unique" }"#, "timer", "needs a `period`"),
        (r#""timer": { "ref": "u", "period": -1 }"#, "timer.period", "choose from 0"),
        (r#""timer": { "ref": "u", "period": 1, "mode": "x" }"#, "timer.mode", "relative"),
        (r#""instance": 2, "timer": { "ref": "u", "period": 1 }"#, "timer", "uniqueu"),
        (r#""run": 1, "phases": { "p": { "run": 1 } }"#, "run", "beside `phases`"),
        (r#""phases": { "p": { "loop": 0, "run": 1 } }"#, "phases.p", "`loop` 0"),
        (r#""phases": { "p": { } }"#, "phases.p", "no events"),
        (r#""instance": 1"#, "", "no events"),
    ] {
        let said = of_task(&format!("\"loop\": 1, {task}"));
        let place = if path.is_empty() { "(tasks.t)".to_owned() } else { format!("(tasks.t.{path})") };
        assert!(said.contains(&place) && said.contains("line 2, column"), "{task}: {said}");
        assert!(said.contains(why), "{task}: {said}");
    }
    let global = |global: &str| {
        refusal(&format!(r#"{{ "global": {{ {global} }}, "tasks": {{ "t": {{ "loop": 1, "iorun": 1 }} }} }}"#))
    };
    assert!(global(r#""pi_enabled": true"#).contains("(global.pi_enabled): priority inheritance is not modelled"));
    assert!(global(r#""default_policy": "SCHED_RR""#).contains("(global.default_policy): SCHED_RR is not modelled"));
    assert!(global(r#""io_device": "/dev/sda""#).contains("(tasks.t.iorun): how fast"));
    assert!(global(r#""calibration": "GPU""#).contains("(global.calibration)"));
    assert!(global(r#""duration": "2""#).contains("(global.duration): a string where an integer"));
}

#[test]
fn what_goes_on_for_ever_needs_a_duration() {
    let task = r#""tasks": { "t": { "run": 1 } }"#;
    assert!(refusal(&format!("{{ {task} }}")).contains("(tasks.t): this goes on for ever"));
    let (load, _) = read(&format!("{{ {task}, \"global\": {{ \"duration\": 1 }} }}"));
    assert_eq!(load.tasks[0].program, [Step::forever([Step::Run { ns: US }])]);
}

#[test]
fn broken_files_are_refused_with_line_and_column() {
    for (text, why) in [
        ("", "line 1, column 1: the file ends"),
        ("[]", "line 1, column 1: a list where an object should be"),
        ("{}", "line 1, column 1: there is no object `tasks`"),
        ("{ \"tasks\": {} }", "line 1, column 12 (tasks): there are no tasks"),
        ("{\n  \"tasks\" : { \"t\" : { \"run\" : 1 \"sleep\" : 2 } } }", "line 2, column 33: `,` or `}`"),
        ("{\n\n /* no end", "line 3, column 2: this comment has no end"),
        ("{ \"no end", "line 1, column 3: this string has no end"),
        ("{ tasks: {} }", "a key should be here, in quotes"),
        ("{ \"a\" 1 }", "`:` should follow the key `a`"),
        ("{ \"a\": 1e }", "`1e` is no number"),
        ("{ \"a\": yes }", "`yes` is no value"),
        ("{ \"a\": \"\\x\" }", "no such escape"),
        ("{ \"a\": \"\\u12\" }", "four hexadecimal digits"),
        ("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "column 33: nested deeper than 32"),
    ] {
        let said = refusal(text);
        assert!(said.contains(why), "{text}: {said}");
    }
}

#[test]
fn either_format_is_told_from_the_other() {
    let own = Workload::new("own", 1, [TaskSpec::new("t", vec![Step::Run { ns: 1 }])]);
    assert!(!rt_app::is_rt_app(&own.to_json()));
    assert_eq!(rt_app::read("file", &own.to_json()).unwrap().0, own);
    let rt_app = "/* x */ { \"tasks\" : { \"t\" : { \"loop\" : 1, \"run\" : 1 } } }";
    assert_eq!(rt_app::read("file", rt_app).unwrap().0.name, "file");
    // Not the error of a reader of the other format, which would point to the comment.
    let broken = rt_app::read("file", &rt_app.replace("1, ", "1 ")).unwrap_err().to_string();
    assert!(broken.contains("`,` or `}` should follow a value"), "{broken}");
}

/// Pieces of which files are made, right and wrong.
fn piece() -> impl Strategy<Value = String> {
    let known = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"tasks\"",
        "\"global\"",
        "\"t\"",
        "\"run\"",
        "\"sleep\"",
        "\"timer\"",
        "\"ref\"",
        "\"period\"",
        "\"loop\"",
        "\"phases\"",
        "\"instance\"",
        "\"cpus\"",
        "\"lock\"",
        "\"wait\"",
        "\"barrier\"",
        "\"fork\"",
        "\"suspend\"",
        "\"duration\"",
        "1",
        "-1",
        "0",
        "4294967296",
        "1.5",
        "true",
        "NULL",
        "/*",
        "*/",
        "//",
        "\n",
        "'",
        "\"",
        "\\",
        "é",
        "\"\\ud83d\\ude00\"",
    ];
    prop_oneof![6 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => ".{0,4}"]
}

const WHOLE: &str = r#"{ "tasks": { "a": { "instance": 2, "cpus": [0, 1], "phases": { "p": { "loop": 2, "run": 5,
    "timer": { "ref": "unique", "period": 7, "mode": "absolute" }, "lock": "m", "unlock": "m", "barrier": "b" } } },
    "c": { "loop": 1, "barrier": "b", "fork": "d", "suspend": "x", "taskgroup": "/g", "priority": 3 },
    "d": { "instance": 0, "loop": 3, "taskgroup": "/g", "sync": { "ref": "c", "mutex": "m" } } },
    "global": { "duration": 1, "calibration": 20 } }"#;

proptest! {
    #[test]
    fn any_text_is_read_or_refused_in_words(pieces in prop::collection::vec(piece(), 0..60)) {
        let text = pieces.concat();
        if let Err(error) = rt_app::read("fuzz", &text) {
            prop_assert!(error.to_string().len() > 10);
        }
    }

    #[test]
    fn a_file_with_something_changed_is_read_or_refused_in_words(
        changes in prop::collection::vec((0..WHOLE.len(), 0..12_usize, piece()), 0..4),
    ) {
        let mut bytes = WHOLE.as_bytes().to_vec();
        for (at, length, piece) in changes {
            let at = at.min(bytes.len());
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, piece.into_bytes());
        }
        let text = String::from_utf8_lossy(&bytes);
        match rt_app::parse("fuzz", &text) {
            Ok((load, _)) => prop_assert!(load.check().is_ok()),
            Err(error) => prop_assert!(error.to_string().len() > 10),
        }
    }
}

#[test]
fn the_file_that_is_changed_above_is_a_good_one() {
    let (load, remarks) = read(WHOLE);
    assert_eq!((load.instances().count(), remarks.len()), (3, 1));
}
