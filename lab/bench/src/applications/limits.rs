//! What must be reached on real programs.

use super::{Kind, Line, Total};
use crate::{BPF, DEFAULT, Judged};

/// The limits of one program: its name, its measure (or none for its main one), numbers of CPUs, schedulers, the most that it may cost.
type OfProgram = (&'static str, Option<&'static str>, &'static [u32], &'static [&'static str], f64);

const GENERAL: &[&str] = &["fifo", "wfq", "eevdf", "cfs", "bpfland"];

const OF_PROGRAMS: &[OfProgram] = &[
    ("perf-pipe", None, &[1, 2], &["bpfland"], 1.05),
    ("perf-pipe", None, &[4], &["bpfland", "eevdf", "cfs"], 1.10),
    ("perf-pipe", None, &[4], &["fifo", "wfq"], 1.05),
    ("nginx", None, &[4], GENERAL, 1.00),
    ("memcached", None, &[4], GENERAL, 1.00),
    ("cyclictest", Some("p99"), &[4], &["bpfland"], 0.5),
    ("cyclictest", Some("p99"), &[4], &["wfq"], 1.2),
    ("hackbench", None, &[1, 2, 4], &["eevdf"], 1.05),
    ("perf-messaging", None, &[1, 2, 4], &["eevdf"], 1.05),
];

/// Over all programs: the scheduler, beside which other, the most that the geometric mean and the worst may be.
const OVERALL: &[(&str, &str, f64, Option<f64>)] = &[
    ("wfq", DEFAULT, 1.00, None),
    ("eevdf", DEFAULT, 1.00, Some(1.05)),
    ("bpfland", DEFAULT, 1.00, Some(1.10)),
    ("fifo", BPF, 1.003, None),
];

/// Judges what was measured; what was not has no verdict.
pub(super) fn judge(lines: &[Line], totals: &[Total]) -> Vec<Judged> {
    let mut judged = Vec::new();
    for (program, measure, machines, schedulers, at_most) in OF_PROGRAMS {
        for line in lines.iter().filter(|line| line.program == *program && machines.contains(&line.cpus)) {
            let is_meant = match measure {
                None => line.measure.kind.is_main(),
                Some(name) => line.measure.kind == Kind::Latency && line.measure.measure == *name,
            };
            for cell in line.cells.iter().filter(|cell| is_meant && schedulers.contains(&cell.scheduler.as_str())) {
                let what = measure.map_or(String::new(), |measure| format!(" {measure}"));
                let name = format!("{}, {program}{what} on {} CPUs ÷ the kernel's own", cell.scheduler, line.cpus);
                judged.push(verdict(name, cell.cost, *at_most));
            }
        }
    }
    for (scheduler, beside, mean, worst) in OVERALL {
        let meant = |total: &&Total| total.scheduler == *scheduler && total.beside == *beside;
        for total in totals.iter().filter(meant) {
            let name = |what: &str| format!("{scheduler}, {what} on {} CPUs ÷ {beside}", total.cpus);
            judged.push(verdict(name("geometric mean"), Some(total.mean), *mean));
            judged.extend(worst.map(|worst| verdict(name("worst program"), Some(total.worst), worst)));
        }
    }
    judged
}

fn verdict(name: String, figure: Option<f64>, limit: f64) -> Judged {
    Judged { name, figure, limit, met: figure.is_some_and(|figure| figure <= limit) }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Applications,
        tests::{boot, sample},
    };
    use super::*;

    #[test]
    fn what_was_measured_is_judged_and_nothing_else() {
        let of = |cpus, scheduler, value| {
            boot(
                cpus,
                vec![sample("perf-pipe", Kind::Time, DEFAULT, 1.0), sample("perf-pipe", Kind::Time, scheduler, value)],
            )
        };
        let names = |boot| -> Vec<(String, bool)> {
            Applications::new(vec![boot]).limits.into_iter().map(|judged| (judged.name, judged.met)).collect()
        };
        assert_eq!(names(of(8, "scx_bpfland", 3.0)), []);
        assert_eq!(
            names(of(4, "wfq", 1.04)),
            [
                ("wfq, perf-pipe on 4 CPUs ÷ the kernel's own".to_owned(), true),
                ("wfq, geometric mean on 4 CPUs ÷ default".to_owned(), false),
            ]
        );
    }
}
