//! Policies in a process, without a module.

use std::fs::{self, File};

use ekiden_replay::Replay;
use ekiden_test_policies::Faulty;
use serde_json::Value;

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
    turns::{of_today, some_policies},
};

tests! {
    Machine::Crowded => {
        58 every_policy_lives_in_an_agent_and_no_task_is_lost,
        15 an_agent_with_room_for_few_messages_works,
        28 limits_and_weights_of_control_groups_hold_in_an_agent,
        2 a_policy_in_an_agent_hears_of_a_task_s_control_group,
        2 what_an_agent_cannot_do_is_refused_by_name,
        15 policies_take_over_from_each_other_in_an_agent,
        10 ekiden_upgrades_the_policy_of_an_agent_and_shows_how_it_fares,
        14 a_call_that_asks_about_each_of_many_tasks_is_no_loop,
        82 an_agent_that_ends_in_any_way_gives_every_task_back_soon,
    }
    Machine::Parallel(4) => {
        36 in_parallel_every_policy_lives_in_an_agent,
        30 in_parallel_policies_take_over_from_each_other_in_an_agent,
        90 in_parallel_an_agent_that_ends_gives_every_task_back,
    }
}

/// What an agent has recorded of its policy's calls gives the same answers again, from the first call to the last.
fn is_replayed(guest: &TestGuest, policy: &str) {
    let file = File::open(guest.host(&format!("{policy}.ekirec"))).unwrap();
    let outcome = ekiden_linked::replay().run(file).unwrap();
    if let Some(first) = &outcome.first {
        panic!("{policy}: {first}");
    }
    assert_eq!((outcome.differences, outcome.not_exact, outcome.lost), (0, 0, 0), "{policy}: {:?}", outcome.remarks);
    let [exact] = outcome.exact[..] else { panic!("{policy}: {:?}", outcome.exact) };
    assert!(exact.from_beginning && exact.from == 1 && exact.to == outcome.replayed, "{policy}: {exact:?}");
    assert!(outcome.replayed > 2_000, "{policy}: {} calls", outcome.replayed);
}

/// Has a policy live in an agent, and says how many messages were lost.
fn lives(guest: &TestGuest, arguments: &str) -> u64 {
    let reports = guest.guest_test(&format!("agent-works --recordings /host {arguments}"));
    let [report] = &reports[..] else { panic!("{reports:#?}") };
    println!("{report}");
    assert_eq!(report["was_scheduler"], true, "{report}");
    assert!(report["decisions"].as_u64().unwrap() > 500, "{report}");
    assert_eq!(report["records_lost"], 0, "{report}");
    is_replayed(guest, report["policy"].as_str().unwrap());
    report["lost"].as_u64().unwrap()
}

/// In every tenth a CPU goes and comes back. By night more of them: what goes wrong then, goes wrong in one of fifty.
fn rounds() -> u32 {
    std::env::var("EKIDEN_ROUNDS").map_or(20, |rounds| rounds.parse().expect("EKIDEN_ROUNDS is a number"))
}

fn every_policy_lives_in_an_agent_and_no_task_is_lost(guest: &TestGuest) {
    // All of them in eight turns.
    for policy in some_policies(2) {
        let lost = lives(guest, &format!("--policy {policy} --rounds {}", rounds()));
        assert_eq!(lost, 0, "16,384 messages are enough for two CPUs");
    }
}

fn an_agent_with_room_for_few_messages_works(guest: &TestGuest) {
    // All but 512 of which are room for CPUs that write at the same time.
    let lost = lives(guest, "--policy wfq --messages 1024 --rounds 20");
    println!("{lost} messages were lost");
}

/// What tasks of the limited group are to use, in percent of a CPU; and how much those of the other group, which have the rest, and all others
/// can use.
const EXPECTED: &[(&str, f64, f64)] = &[
    ("alone", 50.0, 0.0),
    ("one", 40.0, 100.0),
    ("several", 50.0, 200.0),
    ("less", 20.0, 200.0),
    ("more", 70.0, 200.0),
    ("again", 30.0, 200.0),
    ("left", 0.0, 200.0),
    ("joined", 30.0, 0.0),
    ("doze", 20.0, 0.0),
];

fn keeps_groups(guest: &TestGuest, policy: &str, arguments: &str) -> u64 {
    let reports = guest.guest_test(&format!("agent-groups --policy {policy} {arguments}"));
    for report in &reports {
        println!("{policy} {report}");
    }
    let part = |what: &str| {
        let found = reports.iter().find(|report| report["what"] == what).unwrap_or_else(|| panic!("no `{what}`"));
        ["limited", "other", "agent", "all"].map(|who| found[who].as_f64().unwrap())
    };
    for (what, expected, most) in EXPECTED {
        let [limited, other, agent, all] = part(what);
        assert!((limited - expected).abs() <= 0.05 * expected, "{what}: {limited} instead of {expected}");
        // A CPU may have nothing to run while the agent decides what.
        assert!(all >= 0.9 * most, "{what}: {all} of {most}");
        let rest = if *most == 0.0 { 0.0 } else { all.min(*most) - expected - agent };
        assert!(other >= 0.95 * rest, "{what}: {other} instead of {rest}");
    }
    assert!(part("lifted")[0] > 75.0 && part("doze without a limit")[0] > 100.0);
    let [more, less, ..] = part("300 to 100");
    let expected = if policy == "wfq" { 75.0 } else { 50.0 };
    let share = 100.0 * more / (more + less);
    assert!((share - expected).abs() <= 0.05 * expected, "{share} instead of {expected}");
    let end = reports.last().unwrap();
    assert_eq!(end["still_running"], true, "{end}");
    end["counts"]["lost"].as_u64().unwrap()
}

/// Under one policy at this turn, under another at the next, and with room for few messages at the one after that.
fn limits_and_weights_of_control_groups_hold_in_an_agent(guest: &TestGuest) {
    // All groups are told of at once, then the moves of 700 tasks, and 512 messages fit.
    const FEW: &str = "--messages 1024 --idle 1500";
    for part in of_today(3, 0) {
        let (policy, arguments) = [("wfq", ""), ("fifo", ""), ("wfq", FEW)][part];
        let lost = keeps_groups(guest, policy, arguments);
        assert_eq!(lost > 0, arguments == FEW, "{policy} {arguments}: {lost} messages were lost");
    }
}

fn a_policy_in_an_agent_hears_of_a_task_s_control_group(guest: &TestGuest) {
    let report = &guest.guest_test("figures-in-agent")[0];
    println!("{report}");
    let [before, after] = [0, 1]
        .map(|at| [0, 1, 2].map(|which| report["weights"][at][which].as_u64().unwrap_or_else(|| panic!("{report}"))));
    assert!(before[0] > 10 && before[1] > 10 && before[2] == 0, "{report}");
    // One look at the old weight may have been under way.
    assert!(after[0] > before[0] + 10 && after[1] <= before[1] + 10 && after[2] > 10, "{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

fn a_call_that_asks_about_each_of_many_tasks_is_no_loop(guest: &TestGuest) {
    let report = &guest.guest_test("agent-asks")[0];
    println!("{report}");
    assert_eq!(report["still_running"], true, "{report}");
}

fn in_parallel_every_policy_lives_in_an_agent(guest: &TestGuest) {
    for policy in some_policies(2) {
        lives(guest, &format!("--policy {policy} --rounds 20"));
    }
}

fn ends(guest: &TestGuest, outage_ms_most: f64) {
    let reports = guest.guest_test("agent-ends --flight /host/flight.ekirec");
    let reasons = ["", "it was stopped", "has not answered for", "planted in task_new"];
    let [reports @ .., plain] = &reports[..] else { panic!("no report") };
    assert_eq!(reports.len(), reasons.len(), "{reports:#?}");
    println!("a plain BPF scheduler: {plain}");
    for (report, reason) in reports.iter().zip(reasons) {
        println!("{report}");
        assert_eq!(report["is_disabled"], true, "{report}");
        assert!(report["reason"].as_str().unwrap().contains(reason), "{report}");
        assert!(report["outage_ms"].as_f64().unwrap() <= outage_ms_most, "{report}");
    }
    let outcome = Replay::of::<Faulty>().run(File::open(guest.host("flight.ekirec")).unwrap()).unwrap();
    assert!(outcome.remarks.iter().any(|remark| remark.contains("panics as it did")), "{:?}", outcome.remarks);
    assert_eq!(outcome.differences, 0);
}

fn an_agent_that_ends_in_any_way_gives_every_task_back_soon(guest: &TestGuest) {
    // 50 ms is what is wanted, and is missed now and then: 14 to 52 were seen.
    ends(guest, 100.0);
}

/// By a clock that does not stop while CPUs have no processor. BPF looks every 5 ms at how long an agent has not answered, and where CPUs lose their
/// processors it may take that for a loop no sooner than after a second (`LATE_NS`). The bound was that second alone, in which nothing of what
/// comes after it had room: the look, the wake-ups of the task that looks and of those that rest, on CPUs that may be away then.
fn in_parallel_an_agent_that_ends_gives_every_task_back(guest: &TestGuest) {
    const LATE_MS: f64 = 1_000.0;
    ends(guest, LATE_MS + 500.0);
}

fn what_an_agent_cannot_do_is_refused_by_name(guest: &TestGuest) {
    let reports = guest.guest_test("agent-refuses");
    let expected = ["period_us", "power of two", "an agent schedules this machine already (ekiden_agent_fifo)"];
    assert_eq!(reports.len(), expected.len());
    for (report, expected) in reports.iter().zip(expected) {
        assert!(report["error"].as_str().unwrap().contains(expected), "{report}");
    }
    let refused = guest.shell("start-stop-daemon -S -c 65534:65534 -x /bin/ekiden-test -- agent-refuses 2>&1 || true");
    assert!(refused.contains("this process lacks CAP_BPF and CAP_PERFMON"), "{refused}");
}

/// Whatever takes over, no task is lost, and what was recorded of all of them gives the same answers again.
fn take_over(guest: &TestGuest, rounds: u64) {
    let reports = guest.guest_test(&format!("agent-upgrades {rounds} /host/upgrades.ekirec"));
    let [report, panicked] = &reports[..] else { panic!("{reports:#?}") };
    println!("{report}");
    assert_eq!((&report["upgrades"], &report["was_scheduler"]), (&rounds.into(), &true.into()), "{report}");
    assert_eq!(report["with_state"], rounds / 3, "{report}");
    assert_eq!(report["records_lost"], 0, "{report}");
    let outcome = ekiden_linked::replay().run(File::open(guest.host("upgrades.ekirec")).unwrap()).unwrap();
    assert_eq!((outcome.differences, outcome.not_exact, outcome.lost), (0, 0, 0), "{:?}", outcome.first);
    assert!(
        outcome.remarks.is_empty() && outcome.replayed > 2_000,
        "{} calls, {:?}",
        outcome.replayed,
        outcome.remarks
    );
    let newest = outcome.exact.iter().map(|exact| exact.to).max();
    assert_eq!(newest, Some(outcome.replayed), "{:?}", outcome.exact);
    assert!(panicked["reason"].as_str().unwrap().contains("planted in task_new"), "{panicked}");
    assert_eq!(panicked["state"], "disabled", "{panicked}");
}

fn policies_take_over_from_each_other_in_an_agent(guest: &TestGuest) {
    // Each policy takes over from another one and from itself.
    take_over(guest, 30);
}

fn in_parallel_policies_take_over_from_each_other_in_an_agent(guest: &TestGuest) {
    take_over(guest, 30);
}

fn ekiden_upgrades_the_policy_of_an_agent_and_shows_how_it_fares(guest: &TestGuest) {
    guest.bring("ekiden-cli", "ekiden");
    let inside = r#"
        exec 2>&1
        echo "first $(/lab/programs/ekiden status --json | tr -d '\n')"
        ekiden-load pipe --round-trips 300 > /dev/null
        echo "dumped $(/lab/programs/ekiden record -o /host/dumped.ekirec --dump --json | tr -d '\n')"
        echo "upgrade $(/lab/programs/ekiden upgrade wfq --set slice_min_us=1500 --json | tr -d '\n')"
        echo "again $(/lab/programs/ekiden upgrade wfq --set slice_min_us=2000)" | tr '\n' ' '; echo
        echo "unknown $(/lab/programs/ekiden upgrade colour 2>&1; echo $?)" | tr '\n' ' '; echo
        echo "wrong $(/lab/programs/ekiden upgrade wfq --set slice_min_us=0 2>&1; echo $?)" | tr '\n' ' '; echo
        echo "options $(/lab/programs/ekiden upgrade fifo --from wfq 2>&1; echo $?)" | tr '\n' ' '; echo
        # Else the recording may end before the new policy has had a call.
        /lab/programs/ekiden record -o /host/recorded.ekirec --json -- sh -c '/lab/programs/ekiden upgrade fifo; ekiden-load pipe --round-trips 50' > /tmp/said
        echo "recorded $(tr -d '\n' < /tmp/said | sed 's/.*{/{/')"
        /lab/programs/ekiden upgrade wfq > /dev/null
        echo "later $(/lab/programs/ekiden record -o /host/later.ekirec --dump --json | tr -d '\n')"
        /lab/programs/ekiden record -o /host/twice.ekirec --json -- sh -c '/lab/programs/ekiden upgrade fifo; /lab/programs/ekiden upgrade wfq --set slice_min_us=1200' > /tmp/said
        echo "twice $(tr -d '\n' < /tmp/said | sed 's/.*{/{/')"
        echo "status $(/lab/programs/ekiden status --json | tr -d '\n')"
        /lab/programs/ekiden status | sed 's/^/words /'
        /lab/programs/ekiden status --prometheus | grep ^ekiden_picks_total | sed 's/^/prometheus /'
        /lab/programs/ekiden top --once --interval 0.2 | sed 's/^/top /'
        cp /lab/programs/ekiden /tmp/ekiden-of-others
        # What a kernel still has of others says nothing of the agent.
        insmod /lab/ekiden.ko 2>/dev/null
        echo "user $(start-stop-daemon -S -c 65534:65534 -x /tmp/ekiden-of-others -- status | tr '\n' ' ')"
    "#;
    fs::write(guest.host("inside.sh"), inside).unwrap();
    let said =
        guest.shell("export LD_LIBRARY_PATH=/lab/programs; /lab/programs/ekiden agent fifo --json -- sh /host/inside.sh 2>&1; ls /run/ekiden/agent | wc -l");
    println!("{said}");
    let line =
        |word: &str| said.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("no {word}"));
    let json = |word: &str| serde_json::from_str::<Value>(line(word)).unwrap();
    let first = json("first ");
    let policy = &first["ekiden"]["policies"][0];
    assert_eq!((&policy["policy"], &policy["alive"], &policy["upgrades"]), (&"fifo".into(), &true.into(), &0.into()));
    assert!(first["agent"]["messages"].as_u64().unwrap() > 0, "{first}");
    let upgrade = json("upgrade ");
    assert_eq!(
        (&upgrade["from"], &upgrade["to"], &upgrade["moved"]),
        (&"fifo".into(), &"wfq".into(), &"started_over".into())
    );
    assert!(line("again ").contains("it took over the state as it is in memory"), "{said}");
    assert!(line("unknown ").contains("there is no policy `colour`") && line("unknown ").ends_with("110 "), "{said}");
    assert!(line("wrong ").contains("slice_min_us") && line("wrong ").ends_with("111 "), "{said}");
    assert!(line("options ").contains("--from is for policies in the kernel"), "{said}");
    let status = json("status ");
    let policy = &status["ekiden"]["policies"][0];
    assert_eq!((&policy["policy"], &policy["upgrades"]), (&"wfq".into(), &6.into()), "{status}");
    assert!(policy["picks"].as_u64().unwrap() > 100, "{status}");
    assert!(
        said.contains("words policy      wfq slice_min_us=1200, number 7")
            && said.contains("words agent       process"),
        "{said}"
    );
    assert!(said.contains("prometheus ekiden_picks_total{number=\"7\",policy=\"wfq\"}"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("top ") && line.contains("wfq")), "{said}");
    assert!(line("user ").contains("only root may ask"), "{said}");
    // Until another policy took over, that one's state was not known; what came then is exact from its first call on.
    // What the flight recorder has is of four policies.
    for word in ["recorded", "dumped", "later", "twice"] {
        let file = &format!("{word}.ekirec");
        let kept = json(&format!("{word} "));
        assert!(kept["records"].as_u64().unwrap() > 50, "{kept}");
        let outcome = ekiden_linked::replay().run(File::open(guest.host(file)).unwrap()).unwrap();
        println!("{kept} {} of {} calls, {:?}", outcome.replayed, outcome.calls, outcome.exact);
        assert_eq!(outcome.differences, 0, "{:?} {:?}", outcome.first, outcome.remarks);
        assert!(outcome.exact.iter().any(|exact| exact.from_beginning), "{:?}", outcome.exact);
    }
    let ended = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ended = ended.into_iter().find(|ended| ended["was_scheduler"] == true).expect("what the agent has done");
    assert_eq!(ended["policy"], "wfq", "{ended}");
    assert!(said.trim_end().ends_with('0'), "the socket stays: {said}");
}
