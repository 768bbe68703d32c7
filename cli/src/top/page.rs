//! What two looks at a machine say together. `ekiden top --json` prints it as it is.

use std::time::Duration;

use ekiden_host::Figure;
use ekiden_loader::{Counts, HintQueues, PolicyStatus};
use serde::Serialize;

use super::{
    sample::{CpuTimes, Sample},
    watch::{CpuLooks, Seen},
};

/// A page. What has to be compared with an earlier look is `None` if there is none.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    /// Which scheduler there is, in words.
    pub(super) scheduler: String,
    /// Between the two looks, in seconds.
    pub(super) interval_s: f64,
    /// Whether the kernel calls the policies.
    pub(super) attached: bool,
    pub(super) tasks: u64,
    /// Tasks that there is room for.
    pub(super) tasks_max: u64,
    /// They stand in the order in which they are asked.
    pub(super) policies: Vec<Policy>,
    /// Why the last policy was taken out, if one was.
    pub(super) last_fault: Option<String>,
    pub(super) cpus: Vec<Cpu>,
    /// CPUs that were idle while tasks waited that could use them, on average.
    pub(super) wasted_cpus: Option<f64>,
    /// The tasks that waited the longest between the two looks, the longest first.
    pub(super) waits: Vec<Wait>,
    /// Why nothing is known of wasted CPUs and waiting tasks.
    pub(super) watch_trouble: Option<String>,
}

/// A task that waited for a CPU.
#[derive(Debug, Serialize)]
pub(super) struct Wait {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) cpu: u32,
    /// How long in all, between the two looks.
    pub(super) waited_ms: f64,
    /// How long it has been waiting, if it waits now.
    pub(super) waits_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) number: u32,
    pub(super) params: String,
    /// Whether it is called; if not, it was taken out.
    pub(super) alive: bool,
    /// Whether it has the tasks for which no policy was chosen.
    pub(super) default: bool,
    pub(super) tasks: u64,
    /// Which part its tasks had of the time in which CPUs ran tasks of policies.
    pub(super) share_percent: Option<f64>,
    pub(super) picks_per_s: Option<f64>,
    /// Searches for work that found none.
    pub(super) idle_searches_per_s: Option<f64>,
    pub(super) migrations_per_s: Option<f64>,
    pub(super) refusals: u64,
    pub(super) contract_violations: u64,
    /// What programs say to it in queues, if any has opened one.
    pub(super) queues: Option<HintQueues>,
    pub(super) hints_per_s: Option<f64>,
    /// Figures that it counts itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) figures: Vec<Figure>,
    pub(super) fault: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Cpu {
    pub(super) cpu: u32,
    pub(super) busy_percent: Option<f64>,
    /// Tasks that waited for it, on average: how long all of them waited over how long it was.
    pub(super) waiting: Option<f64>,
    /// How much of the time it was idle while tasks waited that could use it.
    pub(super) wasted_percent: Option<f64>,
}

/// How many of the tasks that waited a page names.
const WAITS: usize = 5;

impl Page {
    pub(super) fn between(before: &Sample, after: &Sample) -> Self {
        let interval = after.at.saturating_sub(before.at);
        let nothing = ekiden_loader::Status::default();
        let status = after.everything.ekiden.as_ref().unwrap_or(&nothing);
        let earlier = before.everything.ekiden.as_ref().map_or(&[][..], |status| &status.policies);
        let pairs = || {
            let then = |now: &PolicyStatus| earlier.iter().find(|then| then.instance == now.instance);
            status.policies.iter().map(move |now| (then(now), now))
        };
        let ticks = pairs().filter_map(|(then, now)| ticks_between(then, now)).sum();
        let policy = |(then, now)| Policy::between(then, now, interval, ticks);
        let seen = before.seen.as_ref().ok().zip(after.seen.as_ref().ok());
        let looks = seen.map(|(then, now)| now.looks - then.looks).filter(|looks| *looks > 0);
        let per_look = |count: fn(&Seen) -> u64| Some((count(seen?.1) - count(seen?.0)) as f64 / looks? as f64);
        let cpu = |now: &CpuTimes| {
            let of_cpu = |count: fn(&CpuLooks) -> u64| {
                let of = |seen: &Seen| seen.cpus.iter().find(|looks| looks.cpu == now.cpu).map_or(0, count);
                Some((of(seen?.1) - of(seen?.0)) as f64 / looks? as f64)
            };
            let cpu = Cpu::between(before.cpus.iter().find(|then| then.cpu == now.cpu), now, interval);
            let waiting = cpu.waiting.or(of_cpu(|looks| looks.waiting));
            Cpu { waiting, wasted_percent: of_cpu(|looks| looks.wasted).map(|part| part * 100.0), ..cpu }
        };
        let last = after.everything.last_fault.as_ref().map(|fault| format!("{}: {}", fault.policy, fault.reason));
        Self {
            scheduler: after.everything.sched_ext.in_words(),
            interval_s: interval.as_secs_f64(),
            attached: status.attached,
            tasks: status.counts.tasks,
            tasks_max: status.capacity,
            policies: pairs().map(policy).collect(),
            last_fault: last.or_else(|| status.fault.clone()),
            cpus: after.cpus.iter().map(cpu).collect(),
            wasted_cpus: per_look(|seen| seen.wasted),
            waits: seen.map(|(then, now)| waits(then, now)).unwrap_or_default(),
            watch_trouble: after.seen.as_ref().err().cloned(),
        }
    }
}

fn ticks_between(then: Option<&PolicyStatus>, now: &PolicyStatus) -> Option<u64> {
    Some(now.counts.ticks.saturating_sub(then?.counts.ticks))
}

/// The tasks that waited between two looks.
fn waits(then: &Seen, now: &Seen) -> Vec<Wait> {
    let ms = |ns: u64| ns as f64 / 1e6;
    let waited = now.tasks.values().filter_map(|task| {
        let before_ns = then.tasks.get(&task.pid).map_or(0, |task| task.waited_ns);
        let waited_ns = task.waited_ns.saturating_sub(before_ns);
        let waits_ms = (task.waits_ns > 0).then(|| ms(task.waits_ns));
        let (pid, name, cpu) = (task.pid, task.name.clone(), task.cpu);
        (waited_ns > 0).then(|| Wait { pid, name, cpu, waited_ms: ms(waited_ns), waits_ms })
    });
    let mut waits: Vec<Wait> = waited.collect();
    waits.sort_by(|a, b| b.waited_ms.total_cmp(&a.waited_ms));
    waits.truncate(WAITS);
    waits
}

impl Policy {
    /// `ticks` is what all policies had.
    fn between(then: Option<&PolicyStatus>, now: &PolicyStatus, interval: Duration, ticks: u64) -> Self {
        let then = then.filter(|_| !interval.is_zero());
        let per_s = |now: u64, then: u64| now.saturating_sub(then) as f64 / interval.as_secs_f64();
        let rate = |count: fn(&Counts) -> u64| then.map(|then| per_s(count(&now.counts), count(&then.counts)));
        let hints = |status: &PolicyStatus| status.queues.as_ref().map_or(0, |queues| queues.counts.hints);
        Self {
            name: now.policy.clone(),
            number: now.instance,
            params: now.params.clone(),
            alive: now.alive,
            default: now.default,
            tasks: now.counts.tasks,
            share_percent: ticks_between(then, now).filter(|_| ticks > 0).map(|own| own as f64 / ticks as f64 * 100.0),
            picks_per_s: rate(|counts| counts.picks),
            idle_searches_per_s: rate(|counts| counts.idles),
            migrations_per_s: rate(|counts| counts.migrations),
            refusals: now.counts.refusals,
            contract_violations: now.counts.contract_violations,
            queues: now.queues.clone(),
            hints_per_s: then.filter(|_| now.queues.is_some()).map(|then| per_s(hints(now), hints(then))),
            figures: now.figures.clone(),
            fault: now.fault.clone().or_else(|| now.counts.engine_fault.clone()),
        }
    }
}

impl Cpu {
    fn between(then: Option<&CpuTimes>, now: &CpuTimes, interval: Duration) -> Self {
        // The kernel's count of idle time may go back a little.
        let busy = |then: &CpuTimes| {
            let total = now.total.checked_sub(then.total).filter(|total| *total > 0)?;
            Some((now.busy.saturating_sub(then.busy) as f64 / total as f64 * 100.0).min(100.0))
        };
        let waiting = |then: &CpuTimes| {
            let waited = now.waited_ns?.saturating_sub(then.waited_ns?);
            (!interval.is_zero()).then(|| waited as f64 / interval.as_nanos() as f64)
        };
        let (busy_percent, waiting) = (then.and_then(busy), then.and_then(waiting));
        Self { cpu: now.cpu, busy_percent, waiting, wasted_percent: None }
    }
}
