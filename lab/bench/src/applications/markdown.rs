//! The figures as tables of a document.

use super::{Applications, Cell, Incident, Kind, Line, Total};
use crate::{DEFAULT, number};

/// What costs more than this is in bold type.
const LOSS: f64 = 1.05;

/// A table for each machine, one over all programs, and everything that went wrong.
pub(super) fn markdown(all: &Applications) -> String {
    let mut text = String::new();
    for cpus in all.machines() {
        let boot = all.boots.iter().find(|boot| boot.cpus == cpus);
        let kernel = boot.map_or("", |boot| boot.kernel.as_str());
        let clock =
            if boot.is_some_and(|boot| boot.counts_instructions) { ", an instruction a nanosecond" } else { "" };
        text += &format!("### {cpus} CPUs\n\nLinux {kernel}{clock}.\n\n");
        let schedulers: Vec<&str> = all.schedulers(cpus).into_iter().filter(|name| *name != DEFAULT).collect();
        let heading = ["program", "figure", "turns", "the kernel's own"].into_iter().chain(schedulers.iter().copied());
        let of_machine = all.lines.iter().filter(|line| line.cpus == cpus && line.measure.kind != Kind::Count);
        text += &table(&heading.collect::<Vec<_>>(), of_machine.map(|line| row(line, &schedulers)));
    }
    text += "### All programs of a machine together\n\n";
    let worst = |total: &Total| [format!("{:.2}, {}", total.worst, total.worst_program)];
    let totals = all.totals.iter().map(|total| total.cells(worst(total)));
    text += &table(&[&Total::HEADING[..], &["worst"]].concat(), totals);
    text += "### What went wrong\n\n";
    let mut wrong: Vec<(String, usize)> = Vec::new();
    for (cpus, Incident { program, scheduler, what, .. }) in all.incidents() {
        let scheduler = scheduler.as_deref().unwrap_or("every scheduler");
        let line = format!("{cpus} CPUs, {program}, {scheduler}: {what}");
        match wrong.iter_mut().find(|(known, _)| *known == line) {
            Some((_, times)) => *times += 1,
            None => wrong.push((line, 1)),
        }
    }
    match wrong.is_empty() {
        true => text += "Nothing: every program ran in every turn, and every scheduler stayed until its turns ended.\n",
        false => wrong.iter().for_each(|(line, times)| text += &format!("- {line} ({times} ×)\n")),
    }
    text
}

fn row(line: &Line, schedulers: &[&str]) -> Vec<String> {
    let own = line.cell(DEFAULT);
    let turns = own.map_or(0, |cell| cell.summary.n);
    let measure = &line.measure;
    let mut row = vec![line.program.clone(), format!("{}, {}", measure.measure, measure.unit), turns.to_string()];
    row.push(own.map_or("–".to_owned(), |cell| short(cell.summary.median)));
    row.extend(schedulers.iter().map(|name| line.cell(name).map_or("–".to_owned(), |cell| beside(line, cell, turns))));
    row
}

/// The value, what it costs beside the kernel's own, the least and most of that if there were several turns, and whether others had more.
fn beside(line: &Line, cell: &Cell, turns: usize) -> String {
    let value = short(cell.summary.median);
    let (Some(cost), Some((least, most))) = (cell.cost, line.costs(cell)) else { return value };
    let strong = if cost > LOSS { "**" } else { "" };
    let n = cell.summary.n;
    let range = if n > 1 { format!(" ({least:.2}–{most:.2})") } else { String::new() };
    let fewer = if n < turns { format!(", {n} of {turns} turns") } else { String::new() };
    format!("{value} · {strong}{cost:.2}{strong}{range}{fewer}")
}

fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => number(value),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn table(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&heading.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
    text += &line(&vec!["---".to_owned(); heading.len()]);
    rows.for_each(|cells| text += &line(&cells));
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{boot, sample},
        *,
    };
    use expect_test::expect;

    #[test]
    fn a_document_has_every_figure_losses_in_bold_and_what_went_wrong_once() {
        let samples = vec![
            sample("nginx", Kind::Rate, DEFAULT, 14_647.0),
            sample("nginx", Kind::Rate, DEFAULT, 14_647.0),
            sample("nginx", Kind::Rate, "wfq", 12_000.0),
            sample("pipe", Kind::Time, DEFAULT, 2.0),
            sample("pipe", Kind::Time, "wfq", 1.8),
            sample("pipe", Kind::Time, "wfq", 2.0),
            sample("pipe", Kind::Count, "wfq", 7.0),
        ];
        let mut boot = boot(2, samples);
        let scheduler = Some("wfq".to_owned());
        let what = "it took more than 120 s".to_owned();
        let late = Incident { program: "xz".into(), scheduler, was_taken_out: false, what };
        boot.incidents = vec![late.clone(), late];
        expect![[r"
            ### 2 CPUs

            Linux 7.3.4, an instruction a nanosecond.

            | program | figure | turns | the kernel's own | wfq |
            | --- | --- | --- | --- | --- |
            | nginx | figure, s | 2 | 14,647 | 12,000 · **1.22**, 1 of 2 turns |
            | pipe | figure, s | 1 | 2.00 | 1.90 · 0.95 (0.90–1.00) |

            ### All programs of a machine together

            | scheduler | beside | CPUs | programs | geometric mean | worst |
            | --- | --- | --- | --- | --- | --- |
            | wfq | default | 2 | 2 | 1.077 | 1.22, nginx |

            ### What went wrong

            - 2 CPUs, xz, wfq: it took more than 120 s (2 ×)
        "]]
        .assert_eq(&markdown(&Applications::new(vec![boot])));
    }
}
