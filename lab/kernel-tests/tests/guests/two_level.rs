//! A server on user-level threads asks the core arbiter for CPUs, while clients want much or little of it.

use serde_json::Value;

use crate::{
    pool::tests,
    test_guest::{Machine, TestGuest},
};

tests! {
    Machine::Newest(8) => {
        14 a_server_is_given_more_cpus_by_the_arbiter_while_clients_want_more,
    }
}

/// Few requests; as many as sixteen connections can make; the same while another server wants five of the seven CPUs and is more important; and few
/// again. The other one comes again until a CPU was asked back: where an activation sleeps at that moment, its CPU is taken without a question. The
/// guest's clock is eight times ahead of its instructions.
const SCRIPT: &str = r#"set -e
export LD_LIBRARY_PATH=/lab/programs
listens() {
	for look in $(seq 100); do grep -qs listening $1 && return; sleep 0.1; done
	return 1
}
comes() {
	rm -f /tmp/other
	/lab/programs/ekiden-memcached --cpus 5..5 --priority 2 --port 11301 > /tmp/other 2>> /tmp/others & other=$!
	listens /tmp/other
}
asked_back() {
	printf 'stats\r\nquit\r\n' | nc 127.0.0.1 11300 | tr -d '\r' | sed -n 's/^STAT cpus_asked_back //p'
}
/lab/programs/ekiden-memcached --cpus 2..7 --port 11300 > /tmp/listens 2> /tmp/said & server=$!
listens /tmp/listens
clients="/lab/programs/ekiden-memcached-load --server 127.0.0.1:11300 --keys 200 --json"
echo "few $($clients --connections 1 --gap-us 50000 --seconds 2)"
echo "many $($clients --connections 16 --gets 100 --seconds 4)"
$clients --connections 4 --gets 100 --seconds 600 > /dev/null & busy=$!
sleep 1
comes
echo "beside $($clients --connections 4 --gets 100 --seconds 3)"
printf 'stats\r\nquit\r\n' | nc 127.0.0.1 11301 | tr -d '\r' | sed 's/^STAT/other/'
for try in $(seq 20); do
	test "$(asked_back)" -gt 0 && break
	kill $other
	wait $other
	sleep 1
	comes
	sleep 1
done
kill $busy $other
wait $other
echo "again $($clients --connections 1 --gap-us 50000 --seconds 2)"
printf 'stats\r\nquit\r\n' | nc 127.0.0.1 11300 | tr -d '\r' | sed 's/^STAT/stat/'
kill $server
wait $server
echo "said $(cat /tmp/said /tmp/others)"
"#;

fn a_server_is_given_more_cpus_by_the_arbiter_while_clients_want_more(guest: &TestGuest) {
    guest.bring("ekiden-two-level", "ekiden-memcached");
    guest.bring("ekiden-two-level", "ekiden-memcached-load");
    std::fs::write(guest.host("serve.sh"), SCRIPT).unwrap();
    // Fails if the policy is not the scheduler at the end, or the script fails.
    let said = guest.shell("ekiden-test hold --modules /lab --policy arbiter -- sh /host/serve.sh");
    println!("{said}");
    let of = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{what}: {said}"))
    };
    let reports = ["few", "many", "beside", "again"].map(|what| serde_json::from_str::<Value>(of(what)).unwrap());
    for report in &reports {
        let number = |name: &str| report[name].as_u64().unwrap();
        assert!(report["wrong"] == 0 && number("requests") > 10, "{report}");
        assert_eq!(report["arbiter"], true, "{report}");
        assert!(number("cpus_most") <= 7, "{report}");
    }
    let [few, many, beside, again] = &reports;
    assert!(few["cpus_least"] == 2 && again["cpus_least"] == 2, "never less than two while there are enough: {said}");
    assert!(few["cpus_most"] == 2 && again["cpus_most"] == 2, "two are enough: {few} {again}");
    assert!(many["cpus_mean"].as_f64() >= Some(4.0) && many["cpus_most"].as_u64() >= Some(5), "{many}");
    assert!(beside["cpus_most"].as_u64() <= Some(2), "two of seven are left: {beside}");
    assert_eq!(of("other cpus"), "5", "the other one has what it wants");
    assert!(of("stat cpus_asked_back").parse::<u64>().unwrap() > 0, "{said}");
    assert_eq!(of("said"), "", "an arbiter is there all the time");
    assert_eq!(of("stat arbiter"), "1");
}
