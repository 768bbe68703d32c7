//! Perfetto's published schema reads what is exported for Perfetto.

use std::{collections::BTreeMap, env, path::PathBuf, process::Command};

use ekiden_check::{Checker, Limits, TaskName, Violation};
use ekiden_export::Perfetto;
use ekiden_page::Builder;
use ekiden_policies::{Mlfq, Wfq};
use ekiden_sim::{Machine, Simulation};
use ekiden_trace::{Trace, What};
use prost_reflect::{DescriptorPool, DynamicMessage, Value};

/// Cargo brings the schema with a crate that nothing is linked with.
fn schema() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(["metadata", "--format-version=1", "--locked"]).output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let mut packages = metadata["packages"].as_array().unwrap().iter();
    let package = packages.find(|package| package["name"] == "tracing-perfetto-sdk-schema").unwrap();
    PathBuf::from(package["manifest_path"].as_str().unwrap()).with_file_name("protos")
}

fn decode(bytes: &[u8]) -> DynamicMessage {
    let directory = schema();
    let files = protox::compile([directory.join("perfetto_trace.proto")], [&directory]).unwrap();
    let pool = DescriptorPool::from_file_descriptor_set(files).unwrap();
    DynamicMessage::decode(pool.get_message_by_name("perfetto.protos.Trace").unwrap(), bytes).unwrap()
}

/// Fields that the schema does not know, anywhere.
fn unknown(message: &DynamicMessage) -> usize {
    let inner = |value: &Value| value.as_message().map_or(0, unknown);
    let fields = message.fields().map(|(_, value)| match value {
        Value::List(values) => values.iter().map(inner).sum(),
        value => inner(value),
    });
    message.unknown_fields().count() + fields.sum::<usize>()
}

fn get<'a>(message: &'a DynamicMessage, name: &str) -> Option<std::borrow::Cow<'a, Value>> {
    message.has_field_by_name(name).then(|| message.get_field_by_name(name).unwrap())
}

fn number(message: &DynamicMessage, name: &str) -> i64 {
    match get(message, name).unwrap().as_ref() {
        Value::U32(value) => i64::from(*value),
        Value::I32(value) | Value::EnumNumber(value) => i64::from(*value),
        Value::U64(value) => *value as i64,
        Value::I64(value) => *value,
        other => panic!("{name} is {other:?}"),
    }
}

fn traced() -> Trace {
    let load = ekiden_workload::builtin::find("messaging", 2).unwrap().workload;
    Simulation::of::<Wfq>(Machine::flat(2), "").traced().run(&load).unwrap().trace
}

#[test]
fn perfetto_reads_every_switch_wake_up_queue_and_violation() {
    let trace = traced();
    let mut builder = Builder::new(&trace.header().unwrap());
    trace.records().for_each(|record| builder.record(&record));
    let model = builder.finish();
    let violation = Violation {
        check: "work-conservation",
        since_ns: 1_000,
        at_ns: 5_000,
        cpus: vec![0],
        tasks: vec![TaskName { pid: 1, name: String::new() }],
        message: "CPU 0 is idle".into(),
    };
    let mut bytes = Vec::new();
    let mut checker = Checker::new(&trace.header().unwrap(), &Limits::default());
    let mut exporter = Perfetto::new(2, &mut bytes).unwrap();
    for record in trace.records() {
        exporter.record(&record, checker.view()).unwrap();
        checker.record(&record);
    }
    exporter.finish(&[violation.clone(), violation]).unwrap();
    let decoded = decode(&bytes);
    assert_eq!(unknown(&decoded), 0);

    let packets = get(&decoded, "packet").unwrap();
    let mut counters: BTreeMap<i64, Vec<(u64, i64)>> = BTreeMap::new();
    let (mut tracks, mut running) = (BTreeMap::new(), BTreeMap::new());
    let (mut runs, mut wakeups, mut slices) = (0, 0, Vec::new());
    for packet in packets.as_list().unwrap() {
        let packet = packet.as_message().unwrap();
        if let Some(bundle) = get(packet, "ftrace_events") {
            let bundle = bundle.as_message().unwrap();
            let cpu = number(bundle, "cpu");
            for event in get(bundle, "event").unwrap().as_list().unwrap() {
                let event = event.as_message().unwrap();
                if let Some(switch) = get(event, "sched_switch") {
                    let switch = switch.as_message().unwrap();
                    let before = running.insert(cpu, number(switch, "next_pid")).unwrap_or_default();
                    assert_eq!(number(switch, "prev_pid"), before, "each switch begins where the last one ended");
                    runs += usize::from(number(switch, "next_pid") != 0);
                } else {
                    assert!(event.has_field_by_name("sched_wakeup"));
                    wakeups += 1;
                }
            }
        } else if let Some(track) = get(packet, "track_descriptor") {
            let track = track.as_message().unwrap();
            tracks.insert(number(track, "uuid"), get(track, "name").unwrap().as_str().unwrap().to_owned());
        } else {
            let event = get(packet, "track_event").unwrap();
            let event = event.as_message().unwrap();
            let (time_ns, uuid) = (number(packet, "timestamp") as u64, number(event, "track_uuid"));
            match number(event, "type") {
                4 => counters.entry(uuid).or_default().push((time_ns, number(event, "counter_value"))),
                kind => slices.push((uuid, kind, time_ns)),
            }
        }
    }
    // The simulator never runs the same task again without having run another, or nothing, in between.
    let switched = model.lanes.iter().map(|lane| lane.runs.len()).sum::<usize>();
    assert!(runs > 50 && runs.abs_diff(switched) * 20 <= switched, "{runs} of {switched}");
    let woken = trace.records().filter(|record| matches!(record.what, What::Wake | What::New)).count();
    assert!(wakeups > 20 && wakeups <= woken, "{wakeups} of {woken}");
    for (uuid, lane) in counters.values().zip(&model.lanes) {
        let changes: Vec<(u64, i64)> = lane.changes.iter().map(|one| (one.time_ns, i64::from(one.tasks))).collect();
        assert_eq!(*uuid, changes);
    }
    assert_eq!(tracks.values().filter(|name| name.ends_with("run queue")).count(), 2);
    // Two at once need two tracks.
    assert_eq!(slices, [(4, 1, 1_000), (4, 2, 5_000), (5, 1, 1_000), (5, 2, 5_000)]);
}

#[test]
fn perfetto_reads_what_a_policy_notes() {
    let load = ekiden_workload::loads::make("hogs:count=1:ms=200", 1).unwrap();
    let trace = Simulation::of::<Mlfq>(Machine::flat(1), "").traced().run(&load).unwrap().trace;
    let mut bytes = Vec::new();
    let mut checker = Checker::new(&trace.header().unwrap(), &Limits::default());
    let mut exporter = Perfetto::new(1, &mut bytes).unwrap();
    for record in trace.records() {
        exporter.record(&record, checker.view()).unwrap();
        checker.record(&record);
    }
    exporter.finish(&[]).unwrap();
    let decoded = decode(&bytes);
    assert_eq!(unknown(&decoded), 0);
    let (mut track, mut notes) = (None, Vec::new());
    for packet in get(&decoded, "packet").unwrap().as_list().unwrap() {
        let packet = packet.as_message().unwrap();
        if let Some(descriptor) = get(packet, "track_descriptor") {
            let descriptor = descriptor.as_message().unwrap();
            if get(descriptor, "name").unwrap().as_str() == Some("CPU 0 notes") {
                assert_eq!(track.replace(number(descriptor, "uuid")), None, "it is described once");
            }
        } else if let Some(event) = get(packet, "track_event") {
            let event = event.as_message().unwrap();
            if number(event, "type") == 3 {
                assert_eq!(Some(number(event, "track_uuid")), track);
                let shown = get(event, "debug_annotations").unwrap().into_owned();
                let shown: Vec<(String, i64)> = shown
                    .as_list()
                    .unwrap()
                    .iter()
                    .map(|one| {
                        let one = one.as_message().unwrap();
                        (get(one, "name").unwrap().as_str().unwrap().to_owned(), number(one, "uint_value"))
                    })
                    .collect();
                notes.push((get(event, "name").unwrap().as_str().unwrap().to_owned(), shown));
            }
        }
    }
    let expected = |level| ("down_to_level".to_owned(), vec![("value".to_owned(), level), ("pid".to_owned(), 1_000)]);
    assert_eq!(notes, [1, 2, 3].map(expected));
}
