//! A server on user-level threads asks the core arbiter for CPUs, while clients want much or little of it.

use serde_json::Value;

use crate::{
    lab::{Lab, Machine},
    pool::tests,
};

tests! {
    Machine::Newest(8) => {
        60 a_server_is_given_more_cpus_by_the_arbiter_while_clients_want_more,
    }
}

/// Few requests, then as many as eight connections can make, then few again; the guest's clock is eight times ahead of its instructions.
const SCRIPT: &str = r#"set -e
export LD_LIBRARY_PATH=/host
/host/ekiden-memcached --cpus 2..7 --port 11300 > /tmp/listens 2> /tmp/said & server=$!
for look in $(seq 100); do grep -q listening /tmp/listens && break; sleep 0.1; done
clients="/host/ekiden-memcached-load --server 127.0.0.1:11300 --keys 200 --json"
echo "few $($clients --connections 1 --gap-us 50000 --seconds 3)"
echo "many $($clients --connections 8 --gets 100 --seconds 6)"
echo "again $($clients --connections 1 --gap-us 50000 --seconds 3)"
printf 'stats\r\nquit\r\n' | nc 127.0.0.1 11300 | tr -d '\r' | sed 's/^STAT/stat/'
kill $server
wait $server
echo "said $(cat /tmp/said)"
"#;

fn a_server_is_given_more_cpus_by_the_arbiter_while_clients_want_more(lab: &Lab) {
    lab.bring("ekiden-two-level", "ekiden-memcached");
    lab.bring("ekiden-two-level", "ekiden-memcached-load");
    std::fs::write(lab.host("serve.sh"), SCRIPT).unwrap();
    // Fails if the policy is not the scheduler at the end, or the script fails.
    let said = lab.shell("ekiden-trial hold --modules /lab --policy arbiter -- sh /host/serve.sh");
    println!("{said}");
    let of = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{what}: {said}"))
    };
    let [few, many, again] = ["few", "many", "again"].map(|what| serde_json::from_str::<Value>(of(what)).unwrap());
    for report in [&few, &many, &again] {
        let number = |name: &str| report[name].as_u64().unwrap();
        assert!(report["wrong"] == 0 && number("requests") > 10, "{report}");
        assert_eq!(report["arbiter"], true, "{report}");
        assert!(2 <= number("cpus_least") && number("cpus_most") <= 7, "{report}");
    }
    let cpus = |report: &Value| report["cpus_mean"].as_f64().unwrap();
    assert!(cpus(&many) >= cpus(&few) + 1.0 && cpus(&many) >= cpus(&again) + 1.0, "{few} {many} {again}");
    assert_eq!(of("said"), "", "an arbiter is there all the time");
    assert_eq!(of("stat arbiter"), "1");
}
