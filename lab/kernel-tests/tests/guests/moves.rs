//! Policies that take over from each other in the other place: from an agent to the kernel, and back.

use std::fs;

use serde_json::Value;

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
};

tests! {
    Machine::Crowded => {
        45 a_policy_moves_between_an_agent_and_the_kernel_and_no_task_is_lost,
        41 what_cannot_move_stays_where_it_is,
    }
    Machine::Parallel(4) => {
        25 in_parallel_a_policy_moves_between_an_agent_and_the_kernel,
    }
}

/// There and back so many times; by hand a hundred.
fn rounds() -> u64 {
    std::env::var("EKIDEN_ROUNDS").map_or(2, |rounds| rounds.parse().expect("EKIDEN_ROUNDS is a number"))
}

/// Runs a script in a guest that has the program and the modules.
fn run(guest: &TestGuest, script: &str, command: &str) -> String {
    guest.bring("ekiden-cli", "ekiden");
    fs::write(guest.host("inside.sh"), script).unwrap();
    let said = guest.shell(&format!(
        "export LD_LIBRARY_PATH=/lab/programs EKIDEN_MODULES=/lab PATH=/lab/programs:$PATH; exec 2>&1; {command}; \
         echo \"left $(cat /sys/kernel/sched_ext/state) $(lsmod | grep -c ^ekiden)\"; ls /run/ekiden/agent | wc -l"
    ));
    println!("{said}");
    assert!(said.trim_end().ends_with("left disabled 0\n0"), "{said}");
    said
}

/// What a command printed as JSON, in lines that begin with a word.
fn printed(said: &str, word: &str) -> Vec<Value> {
    let lines = said.lines().filter_map(|line| line.strip_prefix(word));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Beside a load that has to end well, the policy moves, and is the scheduler afterwards, of all tasks.
fn moves(guest: &TestGuest) {
    let rounds = rounds();
    let script = format!(
        r#"
        ekiden-load messaging --groups 2 --json > /tmp/load &
        for round in $(seq {rounds}); do
            echo "move $(ekiden upgrade wfq --to kernel --json | tr -d '\n')"
            ekiden-load pipe --round-trips 300 > /dev/null
            echo "status $(ekiden status --json | tr -d '\n')"
            echo "move $(ekiden upgrade eevdf --to agent --json | tr -d '\n')"
            ekiden-load pipe --round-trips 300 > /dev/null
            echo "status $(ekiden status --json | tr -d '\n')"
        done
        wait && echo "load went well"
        ekiden-load run churn --check > /dev/null && echo "churn went well"
    "#
    );
    let said = run(guest, &script, "ekiden agent eevdf --json -- sh /host/inside.sh");
    let moves = printed(&said, "move ");
    assert_eq!(moves.len() as u64, 2 * rounds, "{said}");
    let statuses = printed(&said, "status ");
    assert_eq!(statuses.len(), moves.len(), "{said}");
    for (moved, status) in moves.iter().zip(statuses) {
        assert!(moved["tasks"].as_u64() > Some(30), "{moved}");
        let policies = status["ekiden"]["policies"].as_array().unwrap();
        let [policy] = &policies[..] else { panic!("{status}") };
        assert_eq!((&policy["policy"], &policy["alive"]), (&moved["to"], &true.into()), "{status}");
        assert!(policy["tasks"].as_u64() > Some(30) && policy["picks"].as_u64() > Some(100), "{status}");
        let scheduler = if moved["place"] == "kernel" { "ekiden_wfq" } else { "ekiden_agent_eevdf" };
        assert_eq!(status["sched_ext"]["scheduler"], scheduler, "{status}");
        assert_eq!(status["agent"].is_null(), moved["place"] == "kernel", "{status}");
    }
    let between_ms = moves.iter().map(|moved| moved["between_ns"].as_u64().unwrap() / 1_000_000);
    println!("under the kernel's own scheduler, ms: {:?}", between_ms.collect::<Vec<_>>());
    assert!(said.contains("load went well") && said.contains("churn went well"), "{said}");
    let ended = said.lines().find(|line| line.contains("was_scheduler")).expect("what was done");
    let ended: Value = serde_json::from_str(ended).unwrap();
    assert_eq!((&ended["policy"], &ended["place"]), (&"eevdf".into(), &"agent".into()), "{ended}");
    assert_eq!(ended["was_scheduler"], true, "{ended}");
}

fn a_policy_moves_between_an_agent_and_the_kernel_and_no_task_is_lost(guest: &TestGuest) {
    moves(guest);
}

fn in_parallel_a_policy_moves_between_an_agent_and_the_kernel(guest: &TestGuest) {
    moves(guest);
}

fn what_cannot_move_stays_where_it_is(guest: &TestGuest) {
    // With the same policy go its parameters. What is refused says so, and the policy in the kernel has the tasks afterwards.
    let script = r#"
        exec 2>&1
        tells() { echo "$1 $(ekiden upgrade $2 2>&1; echo "exit $?")" | tr '\n' ' '; echo; echo "$1 now $(ekiden status | tr '\n' ' ')"; }
        tells parameters "wfq --to agent"
        tells back "wfq --to kernel"
        tells unknown "colour --to agent"
        tells wrong "wfq --to agent --set slice_min_us=0"
        ekiden run fifo --beside -- sleep 60 &
        until ekiden status | grep -q fifo; do sleep 0.1; done
        tells several "wfq --to agent"
        kill %1; wait
        tells there "wfq --to kernel --start-over --set slice_min_us=1500"
        tells own "wfq --to agent --modules /tmp"
        tells nothing "wfq --to kernel --modules /tmp"
    "#;
    let said = run(
        guest,
        script,
        "ekiden run wfq --set slice_min_us=1500 -- sh /host/inside.sh; \
         ekiden run fifo --record /tmp/calls.ekirec -- ekiden upgrade fifo --to agent; ekiden upgrade fifo --to agent",
    );
    let line = |word: &str| {
        let mut lines = said.lines();
        lines.find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("no {word}: {said}"))
    };
    assert!(line("parameters ").contains("wfq in an agent took over from wfq"), "{said}");
    for word in ["parameters now ", "nothing now "] {
        assert!(line(word).contains("wfq slice_min_us=1500") && line(word).contains("agent       process"), "{said}");
    }
    assert!(line("back ").contains("wfq in the kernel took over from wfq"), "{said}");
    assert!(line("unknown ").contains("wfq keeps running: there is no policy `colour`"), "{said}");
    assert!(line("wrong ").contains("slice_min_us"), "{said}");
    assert!(line("several ").contains("wfq keeps running: an agent has one policy, and fifo runs as well"), "{said}");
    for word in ["back now ", "unknown now ", "wrong now ", "there now "] {
        assert!(line(word).contains("ekiden_wfq (sched_ext)") && !line(word).contains("agent"), "{said}");
    }
    let exits = [("parameters ", 0), ("unknown ", 120), ("wrong ", 111), ("several ", 120), ("there ", 0), ("own ", 0)];
    for (word, code) in exits {
        assert!(line(word).trim_end().ends_with(&format!("exit {code}")), "{word}: {said}");
    }
    assert!(line("own ").contains("wfq in an agent took over from wfq"), "{said}");
    assert!(line("there ").contains("started over with all tasks"), "{said}");
    assert!(line("nothing ").contains("/tmp"), "{said}");
    assert!(said.contains("fifo keeps running: its calls go to a file until it ends (--record)"), "{said}");
    assert!(said.contains("no policy runs"), "{said}");
}
