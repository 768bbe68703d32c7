//! The C header says the same as the Rust crate: a C program prints its numbers and offsets, and they are compared.

use std::{env, fmt::Write, fs, mem::offset_of, path::Path, process::Command};

use ekiden_abi::{
    ABI_VERSION, Call, Event, EventKind, NAME_LEN, Outcome, RawParams, RefusalReason, Status, TASK_PARAMS_MAX,
    enqueue_flags, init_flags, pick_flags, refill_flags,
};

/// What C calls it, and what Rust says it is.
fn expected() -> Vec<(&'static str, i64)> {
    vec![
        ("EKIDEN_ABI_VERSION", ABI_VERSION.into()),
        ("EKIDEN_NAME_LEN", NAME_LEN as i64),
        ("EKIDEN_TASK_PARAMS_MAX", TASK_PARAMS_MAX as i64),
        ("EKIDEN_TASK_INIT", EventKind::TaskInit as i64),
        ("EKIDEN_TASK_ENABLE", EventKind::TaskEnable as i64),
        ("EKIDEN_TASK_DISABLE", EventKind::TaskDisable as i64),
        ("EKIDEN_TASK_EXIT", EventKind::TaskExit as i64),
        ("EKIDEN_SELECT_CPU", EventKind::SelectCpu as i64),
        ("EKIDEN_ENQUEUE", EventKind::Enqueue as i64),
        ("EKIDEN_BLOCK", EventKind::Block as i64),
        ("EKIDEN_PICK", EventKind::Pick as i64),
        ("EKIDEN_PICK_REFUSED", EventKind::PickRefused as i64),
        ("EKIDEN_TICK", EventKind::Tick as i64),
        ("EKIDEN_YIELD", EventKind::Yield as i64),
        ("EKIDEN_NICE", EventKind::Nice as i64),
        ("EKIDEN_AFFINITY", EventKind::Affinity as i64),
        ("EKIDEN_CPU_ONLINE", EventKind::CpuOnline as i64),
        ("EKIDEN_CPU_OFFLINE", EventKind::CpuOffline as i64),
        ("EKIDEN_TIMER", EventKind::Timer as i64),
        ("EKIDEN_HINT", EventKind::Hint as i64),
        ("EKIDEN_QUEUE_OPEN", EventKind::QueueOpen as i64),
        ("EKIDEN_QUEUE_READY", EventKind::QueueReady as i64),
        ("EKIDEN_QUEUE_CLOSE", EventKind::QueueClose as i64),
        ("EKIDEN_TASK_MOVE", EventKind::TaskMove as i64),
        ("EKIDEN_GROUP_CREATE", EventKind::GroupCreate as i64),
        ("EKIDEN_GROUP_DESTROY", EventKind::GroupDestroy as i64),
        ("EKIDEN_GROUP_WEIGHT", EventKind::GroupWeight as i64),
        ("EKIDEN_GROUP_IDLE", EventKind::GroupIdle as i64),
        ("EKIDEN_GROUP_LIMIT", EventKind::GroupLimit as i64),
        ("EKIDEN_REFILL", EventKind::Refill as i64),
        ("EKIDEN_TASK_PARAMS", EventKind::TaskParams as i64),
        ("EKIDEN_DONE", Status::Done as i64),
        ("EKIDEN_RUN", Status::Run as i64),
        ("EKIDEN_KEEP_PREVIOUS", Status::KeepPrevious as i64),
        ("EKIDEN_BEYOND", Status::Beyond as i64),
        ("EKIDEN_FAULT", Status::Fault as i64),
        ("EKIDEN_INVALID", Status::Invalid as i64),
        ("EKIDEN_FULL", Status::Full as i64),
        ("EKIDEN_INIT_AGAIN", init_flags::AGAIN as i64),
        ("EKIDEN_ENQUEUE_WAKEUP", enqueue_flags::WAKEUP as i64),
        ("EKIDEN_ENQUEUE_LAST", enqueue_flags::LAST as i64),
        ("EKIDEN_ENQUEUE_MAY_PLACE", enqueue_flags::MAY_PLACE as i64),
        ("EKIDEN_PICK_PREV_RUNNABLE", pick_flags::PREV_RUNNABLE as i64),
        ("EKIDEN_PICK_POLICIES", pick_flags::POLICIES as i64),
        ("EKIDEN_REFILL_RETURNED", refill_flags::RETURNED as i64),
        ("EKIDEN_REFUSED_NOT_ALLOWED", RefusalReason::NotAllowed as i64),
        ("EKIDEN_CALL_SELECT_TASK_RQ", Call::SelectTaskRq as i64),
        ("EKIDEN_CALL_REGISTER_QUEUE", Call::RegisterQueue as i64),
        ("EKIDEN_CALL_ENTER_QUEUE", Call::EnterQueue as i64),
        ("sizeof(struct ekiden_event)", size_of::<Event>() as i64),
        ("sizeof(struct ekiden_task_params)", size_of::<RawParams>() as i64),
        ("offsetof(struct ekiden_task_params, values)", offset_of!(RawParams, values) as i64),
        ("offsetof(struct ekiden_event, kind)", offset_of!(Event, kind) as i64),
        ("offsetof(struct ekiden_event, cpu)", offset_of!(Event, cpu) as i64),
        ("offsetof(struct ekiden_event, task)", offset_of!(Event, task) as i64),
        ("offsetof(struct ekiden_event, flags)", offset_of!(Event, flags) as i64),
        ("offsetof(struct ekiden_event, runtime_ns)", offset_of!(Event, runtime_ns) as i64),
        ("offsetof(struct ekiden_event, args)", offset_of!(Event, args) as i64),
        ("sizeof(struct ekiden_outcome)", size_of::<Outcome>() as i64),
        ("offsetof(struct ekiden_outcome, status)", offset_of!(Outcome, status) as i64),
        ("offsetof(struct ekiden_outcome, cpu)", offset_of!(Outcome, cpu) as i64),
        ("offsetof(struct ekiden_outcome, host_task)", offset_of!(Outcome, host_task) as i64),
        ("offsetof(struct ekiden_outcome, task)", offset_of!(Outcome, task) as i64),
        ("offsetof(struct ekiden_outcome, slice_ns)", offset_of!(Outcome, slice_ns) as i64),
        ("offsetof(struct ekiden_outcome, timer_ns)", offset_of!(Outcome, timer_ns) as i64),
        ("offsetof(struct ekiden_outcome, kicks)", offset_of!(Outcome, kicks) as i64),
    ]
}

#[test]
fn the_c_header_and_the_rust_crate_agree() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hosts/kernel/include/ekiden_abi.h");
    let mut source = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <linux/types.h>\n#include \"{}\"\nint main(void) {{\n",
        header.display()
    );
    for (name, _) in expected() {
        writeln!(source, "printf(\"%lld\\n\", (long long)({name}));").unwrap();
    }
    source.push_str("return 0; }\n");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (program, code) = (directory.join("header"), directory.join("header.c"));
    fs::write(&code, source).unwrap();
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    assert!(Command::new(compiler).arg("-o").args([&program, &code]).status().unwrap().success());
    let output = String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap();
    let found: Vec<i64> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected().len());
    for ((name, expected), found) in expected().into_iter().zip(found) {
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn every_constant_of_the_header_is_compared() {
    let header = include_str!("../../../hosts/kernel/include/ekiden_abi.h");
    let names = header
        .split(|c: char| !(c.is_ascii_uppercase() || c == '_'))
        .filter(|word| word.starts_with("EKIDEN_") && *word != "EKIDEN_ABI_H");
    for name in names {
        assert!(expected().iter().any(|(expected, _)| *expected == name), "{name} is not compared");
    }
}
