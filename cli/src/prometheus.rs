//! `ekiden status --prometheus`: the same in the text format of Prometheus, for node_exporter's textfile collector.

use ekiden_host::Value;
use ekiden_loader::{HintCounts, HintQueues, PolicyStatus};
use prometheus::{
    Encoder, GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry, Result, TextEncoder,
    core::{Atomic, Collector, GenericCounterVec, GenericGaugeVec},
};

use crate::status::Everything;

/// Which policy a figure is of.
const LABELS: &[&str] = &["policy", "number"];

/// A figure of a policy, or of its queues: its name, what it says, and how much it is.
type Figure<Of = PolicyStatus> = (&'static str, &'static str, fn(&Of) -> u64);

/// Counters of a policy's queues of hints.
const QUEUE_COUNTERS: &[Figure<HintQueues>] = &[
    ("ekiden_hint_queues_opened_total", "Queues of hints that programs have opened.", |queues| queues.opened),
    ("ekiden_hints_total", "Hints that the policy has heard in queues.", |queues| queues.counts.hints),
    ("ekiden_hints_refused_total", "Hints that were no values of their type.", |queues| queues.counts.refused),
    ("ekiden_hints_full_total", "How often programs found no room for a hint.", |queues| queues.counts.full),
    ("ekiden_hints_nonsense_total", "Indices of programs that made no sense.", |queues| queues.counts.nonsense),
    ("ekiden_notices_total", "Notices written into queues.", |queues| queues.counts.notices),
    ("ekiden_notices_lost_total", "Notices for which there was no room.", |queues| queues.counts.lost),
];

/// And of each queue that is open, as far as the kernel shows them one by one.
const OPEN_QUEUES: &[Figure<HintCounts>] = &[
    ("ekiden_hint_queue_hints", "Hints that the policy has heard in this queue.", |counts| counts.hints),
    ("ekiden_hint_queue_refused", "Hints of this queue that were no values of their type.", |counts| counts.refused),
    ("ekiden_hint_queue_full", "How often there was no room for a hint in this queue.", |counts| counts.full),
    ("ekiden_hint_queue_notices", "Notices written into this queue.", |counts| counts.notices),
];

/// All figures, as text.
pub(crate) fn text(everything: &Everything) -> Result<String> {
    let registry = Registry::new();
    let nothing = ekiden_loader::Status::default();
    let status = everything.ekiden.as_ref().unwrap_or(&nothing);

    let gauge = |name, help, labels: &[&str]| registered(&registry, IntGaugeVec::new(Opts::new(name, help), labels)?);
    let loaded = gauge("ekiden_loaded", "Whether ekiden.ko is loaded.", &[])?;
    set(&loaded, &[], i64::from(everything.ekiden.is_some()))?;
    let attached = gauge("ekiden_attached", "Whether the kernel calls the policies.", &[])?;
    set(&attached, &[], i64::from(status.attached))?;
    let room = gauge("ekiden_tasks_max", "Tasks that there is room for.", &[])?;
    set(&room, &[], status.capacity as i64)?;
    let beyond = gauge("ekiden_tasks_beyond", "Tasks that there is no room for, which no policy has.", &[])?;
    set(&beyond, &[], status.beyond as i64)?;
    if let Some(fault) = &everything.last_fault {
        let help = "When the last policy was taken out, in seconds since 1970.";
        let last = gauge("ekiden_last_fault_timestamp_seconds", help, &["policy"])?;
        set(&last, &[&fault.policy], fault.at as i64)?;
    }

    let help = "The policies that run, with their parameters.";
    let info = gauge("ekiden_policy_info", help, &["policy", "number", "params"])?;
    for policy in &status.policies {
        set(&info, &[&policy.policy, &policy.instance.to_string(), &policy.params], 1)?;
    }
    let gauges: &[Figure] = &[
        ("ekiden_policy_alive", "Whether the policy is called; if not, it was taken out.", |policy| {
            policy.alive.into()
        }),
        ("ekiden_policy_default", "Whether it has the tasks for which no policy was chosen.", |policy| {
            policy.default.into()
        }),
        ("ekiden_tasks", "Tasks that it has.", |policy| policy.counts.tasks),
    ];
    for (name, help, figure) in gauges {
        let gauges = gauge(name, help, LABELS)?;
        for policy in &status.policies {
            set(&gauges, &[&policy.policy, &policy.instance.to_string()], figure(policy) as i64)?;
        }
    }
    let counters: &[Figure] = &[
        ("ekiden_picks_total", "Tasks picked.", |policy| policy.counts.picks),
        ("ekiden_idle_searches_total", "Searches for work that found none.", |policy| policy.counts.idles),
        ("ekiden_migrations_total", "Waiting tasks moved to another CPU.", |policy| policy.counts.migrations),
        ("ekiden_refusals_total", "Tokens handed back.", |policy| policy.counts.refusals),
        ("ekiden_unexpected_transitions_total", "Unexpected transitions of tasks.", |policy| {
            policy.counts.unexpected_transitions
        }),
        ("ekiden_slowed_total", "Wishes beyond what a policy may have in a time.", |policy| policy.counts.slowed),
        ("ekiden_ticks_total", "Ticks that found a task of the policy running.", |policy| policy.counts.ticks),
        ("ekiden_turns_total", "Turns that tasks had without the policy.", |policy| policy.counts.turns),
        ("ekiden_contract_violations_total", "Contract violations of the policy that were put right.", |policy| {
            policy.counts.contract_violations
        }),
        ("ekiden_upgrades_total", "How often a policy has taken over here.", |policy| policy.upgrades),
    ];
    for (name, help, figure) in counters {
        let counters = registered(&registry, IntCounterVec::new(Opts::new(*name, *help), LABELS)?)?;
        for policy in &status.policies {
            count(&counters, &[&policy.policy, &policy.instance.to_string()], figure(policy))?;
        }
    }
    let with_queues = || status.policies.iter().filter_map(|policy| Some((policy, policy.queues.as_ref()?)));
    let open = gauge("ekiden_hint_queues_open", "Queues of hints that programs have open to the policy.", LABELS)?;
    for (policy, queues) in with_queues() {
        set(&open, &[&policy.policy, &policy.instance.to_string()], queues.open as i64)?;
    }
    for (name, help, figure) in QUEUE_COUNTERS {
        let counters = registered(&registry, IntCounterVec::new(Opts::new(*name, *help), LABELS)?)?;
        for (policy, queues) in with_queues() {
            count(&counters, &[&policy.policy, &policy.instance.to_string()], figure(queues))?;
        }
    }
    // They come and go with their programs, and so do these.
    for (name, help, figure) in OPEN_QUEUES {
        let gauges = gauge(name, help, &["policy", "number", "queue", "process"])?;
        for (policy, queues) in with_queues() {
            for queue in &queues.list {
                let (instance, number) = (policy.instance.to_string(), queue.queue.to_string());
                set(
                    &gauges,
                    &[&policy.policy, &instance, &number, &queue.owner.to_string()],
                    figure(&queue.counts) as i64,
                )?;
            }
        }
    }
    figures_of_their_own(&registry, &status.policies)?;
    let help = "How long a CPU waited at most when a policy took over here.";
    let wait = GaugeVec::new(Opts::new("ekiden_upgrade_wait_seconds_max", help), LABELS)?;
    let wait = registered(&registry, wait)?;
    for policy in &status.policies {
        set(&wait, &[&policy.policy, &policy.instance.to_string()], policy.upgrade_wait_ns_max as f64 / 1e9)?;
    }

    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What policies count themselves: `histogram_quantile` of Prometheus understands the buckets.
fn figures_of_their_own(registry: &Registry, policies: &[PolicyStatus]) -> Result<()> {
    const COUNTER: &str = "ekiden_policy_counter_total";
    const BUCKET: &str = "ekiden_policy_histogram_bucket";
    let help = "What a policy counts itself, by the name that it has for that.";
    let labels = ["policy", "number", "figure"];
    let counters = registered(registry, IntCounterVec::new(Opts::new(COUNTER, help), &labels)?)?;
    let help = "How many of the values that a policy has recorded were no larger than that.";
    let labels = ["policy", "number", "figure", "le"];
    let histograms = registered(registry, IntCounterVec::new(Opts::new(BUCKET, help), &labels)?)?;
    for policy in policies {
        let number = policy.instance.to_string();
        for figure in &policy.figures {
            let buckets = match &figure.value {
                Value::Count(value) => {
                    count(&counters, &[&policy.policy, &number, &figure.name], *value)?;
                    continue;
                }
                Value::Buckets(buckets) => buckets,
            };
            let mut sum = 0;
            for (least, values) in buckets {
                sum += values;
                // The largest value of the bucket.
                let most = least.saturating_mul(2).saturating_sub(1).to_string();
                count(&histograms, &[&policy.policy, &number, &figure.name, &most], sum)?;
            }
            count(&histograms, &[&policy.policy, &number, &figure.name, "+Inf"], sum)?;
        }
    }
    Ok(())
}

fn registered<T: Collector + Clone + 'static>(registry: &Registry, metric: T) -> Result<T> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn set<P: Atomic>(gauges: &GenericGaugeVec<P>, labels: &[&str], value: P::T) -> Result<()> {
    gauges.get_metric_with_label_values(labels).map(|gauge| gauge.set(value))
}

fn count<P: Atomic>(counters: &GenericCounterVec<P>, labels: &[&str], value: P::T) -> Result<()> {
    counters.get_metric_with_label_values(labels).map(|counter| counter.inc_by(value))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ekiden_loader::{Counts, OpenQueue, Status};
    use prometheus_parse::{Scrape, Value};

    use super::*;
    use crate::{session::LastFault, status::SchedExt};

    fn policy(name: &str, instance: u32, params: &str) -> PolicyStatus {
        let counts = Counts { tasks: 7, picks: 1 << 40, migrations: 3, ..Counts::default() };
        let (policy, params) = (name.to_owned(), params.to_owned());
        PolicyStatus { policy, instance, params, alive: true, upgrade_wait_ns_max: 1500, counts, ..Default::default() }
    }

    fn everything(policies: Vec<PolicyStatus>) -> Everything {
        let ekiden = Some(Status { attached: true, policies, capacity: 100, ..Status::default() });
        let (policy, reason) = ("lossy".into(), "dropped".into());
        let last_fault = Some(LastFault { policy, reason, at: 1_700_000_000, recording: None });
        Everything { sched_ext: SchedExt::default(), ekiden, agent: None, last_fault }
    }

    /// Each figure by its name and labels, with whether it is a counter.
    fn parsed(text: &str) -> BTreeMap<String, (bool, f64)> {
        let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
        let figures = scrape.samples.into_iter().map(|sample| {
            let mut labels: Vec<String> = sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            labels.sort();
            let (is_counter, value) = match sample.value {
                Value::Counter(value) => (true, value),
                Value::Gauge(value) => (false, value),
                other => panic!("{} is {other:?}", sample.metric),
            };
            (format!("{} {}", sample.metric, labels.join(" ")), (is_counter, value))
        });
        figures.collect()
    }

    #[test]
    fn prometheus_reads_the_figures_of_each_policy() {
        let text = text(&everything(vec![policy("wfq", 3, "slice_min_us=500"), policy("fifo", 12, "")])).unwrap();
        let figures = parsed(&text);
        assert_eq!(figures["ekiden_picks_total number=3 policy=wfq"], (true, (1_u64 << 40) as f64));
        assert_eq!(figures["ekiden_picks_total number=12 policy=fifo"], (true, (1_u64 << 40) as f64));
        assert_eq!(figures["ekiden_tasks number=12 policy=fifo"], (false, 7.0));
        // The parser does not take labels with a `=` in them, which are good all the same.
        assert!(
            text.contains("ekiden_policy_info{number=\"3\",params=\"slice_min_us=500\",policy=\"wfq\"} 1\n"),
            "{text}"
        );
        assert_eq!(figures["ekiden_upgrade_wait_seconds_max number=3 policy=wfq"], (false, 1.5e-6));
        assert_eq!(figures["ekiden_last_fault_timestamp_seconds policy=lossy"], (false, 1.7e9));
        assert_eq!(figures["ekiden_attached "], (false, 1.0));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            for kind in ["HELP", "TYPE"] {
                assert_eq!(text.matches(&format!("# {kind} {name} ")).count(), 1, "{kind} of {name}:\n{text}");
            }
        }
    }

    #[test]
    fn queues_of_hints_have_sums_and_each_that_is_open_its_own_figures() {
        let counts = HintCounts { hints: 300, refused: 2, full: 3, ..HintCounts::default() };
        let queues = HintQueues { opened: 4, open: 1, counts, list: vec![OpenQueue { queue: 9, owner: 4711, counts }] };
        let locality = PolicyStatus { queues: Some(queues), ..policy("locality", 3, "") };
        let figures = parsed(&text(&everything(vec![locality, policy("fifo", 12, "")])).unwrap());
        assert_eq!(figures["ekiden_hint_queues_open number=3 policy=locality"], (false, 1.0));
        assert_eq!(figures["ekiden_hint_queues_opened_total number=3 policy=locality"], (true, 4.0));
        assert_eq!(figures["ekiden_hints_full_total number=3 policy=locality"], (true, 3.0));
        let own = "number=3 policy=locality process=4711 queue=9";
        assert_eq!(figures[&format!("ekiden_hint_queue_hints {own}")], (false, 300.0));
        assert!(!figures.keys().any(|name| name.contains("hint") && name.contains("fifo")), "{figures:?}");
    }

    #[test]
    fn what_a_policy_counts_itself_has_its_name_and_buckets_that_add_up() {
        let figure = |name: &str, value| ekiden_host::Figure { name: name.into(), help: String::new(), value };
        let buckets = super::Value::Buckets(vec![(0, 3), (512, 4)]);
        let figures = vec![figure("steals", super::Value::Count(17)), figure("wait_ns", buckets)];
        let text = text(&everything(vec![PolicyStatus { figures, ..policy("mine", 3, "") }])).unwrap();
        for line in [
            "ekiden_policy_counter_total{figure=\"steals\",number=\"3\",policy=\"mine\"} 17\n",
            "ekiden_policy_histogram_bucket{figure=\"wait_ns\",le=\"0\",number=\"3\",policy=\"mine\"} 3\n",
            "ekiden_policy_histogram_bucket{figure=\"wait_ns\",le=\"1023\",number=\"3\",policy=\"mine\"} 7\n",
            "ekiden_policy_histogram_bucket{figure=\"wait_ns\",le=\"+Inf\",number=\"3\",policy=\"mine\"} 7\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[test]
    fn what_others_have_written_cannot_break_the_format() {
        let text = text(&everything(vec![policy("wfq", 3, "a=\"1\" \\ \n ekiden_evil 1")])).unwrap();
        let line = text.lines().find(|line| line.starts_with("ekiden_policy_info{")).unwrap();
        assert!(line.contains(r#"params="a=\"1\" \\ \n ekiden_evil 1""#) && line.ends_with(" 1"), "{line}");
        assert!(!text.lines().any(|line| line.trim_start().starts_with("ekiden_evil")), "{text}");
    }

    #[test]
    fn a_machine_without_ekiden_has_figures_as_well() {
        let everything = Everything { sched_ext: SchedExt::default(), ekiden: None, agent: None, last_fault: None };
        let figures = parsed(&text(&everything).unwrap());
        assert_eq!(figures["ekiden_loaded "], (false, 0.0));
        assert!(!figures.keys().any(|name| name.contains("policy=")), "{figures:?}");
    }
}
