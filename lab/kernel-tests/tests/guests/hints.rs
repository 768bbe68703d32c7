//! Loads, and programs in other languages than Rust, talk to their policy; and what shows that.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use ekiden_workload::{HintWord, Step, TaskSpec, Workload};
use serde_json::Value;

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
};

tests! {
    Machine::Newest(2) => {
        14 loads_and_programs_in_other_languages_talk_to_their_policy,
        3 what_a_policy_counts_itself_outlives_upgrades_and_the_module_that_named_it,
    }
}

fn what_a_policy_counts_itself_outlives_upgrades_and_the_module_that_named_it(guest: &TestGuest) {
    let report = &guest.guest_test("figures --modules /lab")[0];
    println!("{report}");
    for of in ["root", "group"] {
        let counts: Vec<u64> = report[of].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect();
        assert!(counts[0] > 10 && counts.is_sorted() && counts[3] > counts[2] + 10, "{of}: {report}");
    }
    assert_eq!(report["help"], "weights of the \"groups\" of tasks that are preempted");
    assert_eq!(report["still_running"], true, "{report}");
}

/// Debian's, and not what else may be there by this name.
const PYTHON: &str = "/usr/bin/python3";

/// What a program of Python's loads that imports these, and where the library is of which they are.
const FILES: &str = "
import ctypes, encodings.ascii, encodings.latin_1, encodings.utf_8, fcntl, json, mmap, os, struct, sys, sysconfig
print(os.path.realpath(sys.executable))
print(sysconfig.get_path('stdlib'))
for module in list(sys.modules.values()):
    if getattr(module, '__file__', None):
        print(module.__file__)
";

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/prepare tests"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Has Python in the guest, as far as the example needs it. Guests have no programs but ours.
fn bring_python(guest: &TestGuest) {
    let listing = output(Command::new(PYTHON).args(["-S", "-c", FILES]));
    let mut lines = listing.lines().map(Path::new);
    let (program, library) = (lines.next().unwrap(), lines.next().unwrap());
    let home = guest.host("python/lib").join(library.file_name().unwrap());
    // Python looks for its library by this one.
    let files: BTreeSet<&Path> = lines.filter(|file| file.starts_with(library)).collect();
    assert!(files.iter().any(|file| file.ends_with("os.py")), "{files:?}");
    for file in &files {
        let to = home.join(file.strip_prefix(library).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, to).unwrap();
    }
    fs::copy(program, guest.host("python3")).unwrap();
    let libraries = files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "so"));
    for file in libraries.copied().chain([program]) {
        guest.bring_libraries(file);
    }
}

/// The program in Python that the documentation shows.
fn example() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/hints.md")).unwrap();
    let (_, rest) = page.split_once("```python\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// Says a hundred times that it is in a set, and waits for each answer.
fn talker() -> Workload {
    let words = [HintWord::Value(1), HintWord::OwnPid, HintWord::Value(1)];
    let hint = Step::WriteHint { queue: 0, hint: words.to_vec(), ring: true };
    let talk = [hint, Step::ReadNotice { queue: 0 }, Step::Mark];
    let child = Step::fork([Step::repeat(10, talk.clone())]);
    Workload::new("talker", 2, [TaskSpec::new("talker", vec![Step::repeat(100, talk), child, Step::Wait])])
}

fn loads_and_programs_in_other_languages_talk_to_their_policy(guest: &TestGuest) {
    guest.bring("ekiden-cli", "ekiden");
    bring_python(guest);
    fs::write(guest.host("example.py"), example()).unwrap();
    fs::write(guest.host("talker.json"), serde_json::to_string(&talker()).unwrap()).unwrap();
    let wrong = Step::WriteHint { queue: 0, hint: vec![HintWord::OwnPid], ring: true };
    let wrong = Workload::new("wrong", 1, [TaskSpec::new("wrong", vec![wrong])]);
    fs::write(guest.host("wrong.json"), serde_json::to_string(&wrong).unwrap()).unwrap();
    let script = r#"set -e
         export LD_LIBRARY_PATH=/lab/programs:/host
         types=$(/lab/programs/ekiden hints header locality | sed -n 's/.*\(0x[0-9a-f]*\)ULL, \(0x[0-9a-f]*\)ULL.*/\1 \2/p')
         echo "hint $(/lab/programs/ekiden hint locality change=join thread=$$ set=1)"
         ! /lab/programs/ekiden hint locality colour=3 2> /tmp/said; echo "bad $(cat /tmp/said)"
         echo "python $(PYTHONHOME=/host/python /host/python3 -S /host/example.py $types)"
         echo "load $(ekiden-load run /host/talker.json --json | tr -d '\n')"
         ! ekiden-load run /host/wrong.json 2> /tmp/said; echo "wrong $(cat /tmp/said)"
         /lab/programs/ekiden hint locality --wait 60000 change=join thread=1 set=1 > /dev/null & holder=$!
         for look in $(seq 30); do /lab/programs/ekiden status --json | grep -q '"open": *1' && break; sleep 0.2; done
         echo "holder $holder"
         echo "status $(/lab/programs/ekiden status --json | tr -d '\n')"
         /lab/programs/ekiden status > /tmp/said; sed 's/^/words /' /tmp/said
         /lab/programs/ekiden status --prometheus > /tmp/said; grep hint /tmp/said | sed 's/^/prometheus /'
         /lab/programs/ekiden top --once --interval 0.2 > /tmp/said; grep queue /tmp/said | sed 's/^/top /'
         kill $holder
         wait $holder || true
"#;
    fs::write(guest.host("talk.sh"), script).unwrap();
    let said = guest.shell(
        "EKIDEN_MODULES=/lab LD_LIBRARY_PATH=/lab/programs:/host /lab/programs/ekiden run locality -- sh /host/talk.sh",
    );
    println!("{said}");
    let of = |what: &str| {
        let lines = said.lines().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert!(of("hint").starts_with("thread=") && of("hint").contains("cpu="), "{said}");
    assert!(of("bad").contains("name one of its fields"), "{said}");
    assert!(of("python").contains("wakes up on CPU "), "{said}");
    assert!(of("wrong").contains("takes such of 12"), "{said}");
    let load: Value = serde_json::from_str(&of("load")).unwrap();
    let talker = &load["tasks"][0];
    assert_eq!(talker["marks_ns"].as_array().map(Vec::len), Some(110), "{load}");
    assert_eq!((&talker["forked"], &talker["forked_finished"]), (&1.into(), &1.into()), "{load}");
    let status: Value = serde_json::from_str(&of("status")).unwrap();
    let queues = &status["ekiden"]["policies"][0]["queues"];
    // By hand, from Python, by the load and its child, and what holds one open.
    assert_eq!((&queues["opened"], &queues["open"]), (&5.into(), &1.into()), "{queues}");
    assert_eq!((&queues["hints"], &queues["notices"]), (&113.into(), &113.into()), "{queues}");
    assert_eq!(queues["list"][0]["owner"].to_string(), of("holder"), "{queues}");
    let own = format!("of process {}: 1 hints, 0 refused, 0 had no room", of("holder"));
    assert!(of("words").contains("5 opened, 1 open; 113 hints") && of("words").contains(&own), "{said}");
    assert!(of("prometheus").contains("ekiden_hints_total{number="), "{said}");
    assert!(of("prometheus").contains(&format!("process=\"{}\"", of("holder"))), "{said}");
    assert!(of("top").contains("locality: 1 open of 5") && of("top").contains(&own), "{said}");
}
