//! The page: for each number of CPUs a picture and a table of everything, gains in green and losses in red; no script, no network.

use std::fmt::Write as _;

use super::{Applications, Kind, Line};
use crate::{Judged, number};

/// Costs beyond these ends are drawn at the end.
const ENDS: (f64, f64) = (0.4, 4.0);

/// Marks on the axis.
const TICKS: [f64; 7] = [0.5, 0.7, 0.9, 1.0, 1.25, 2.0, 4.0];

/// Colours of schedulers, which look different to the colour-blind, too.
const COLOURS: [&str; 8] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#999999"];

const LEFT: f64 = 170.0;
const WIDTH: f64 = 760.0;
/// Between two programs, and between two schedulers of one.
const GAP: f64 = 10.0;
const STEP: f64 = 9.0;

/// Within this of 1, a cost has no colour.
const NO_COLOUR: f64 = 0.02;

const HEAD: &str = r"<!doctype html><html lang=en><meta charset=utf-8><title>Real programs under schedulers</title><style>
body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse;margin:1em 0}
td,th{padding:2px 8px;border:1px solid #ddd;text-align:right;white-space:nowrap}td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}
small{color:#666}.missed{background:#f4b6b0}.met{background:#bfe5c3}svg text{font:12px system-ui,sans-serif}
</style>";

pub(super) fn page(all: &Applications) -> String {
    let mut page = HEAD.to_owned();
    let mut kernels: Vec<&str> = all.boots.iter().map(|boot| boot.kernel.as_str()).collect();
    kernels.dedup();
    page += "<h1>Real programs under schedulers</h1><p>Cost beside the kernel's own scheduler: below 1 is a gain (green), above 1 a \
             loss (red), also where a program's figure is a rate. Medians; in brackets the least and the most.";
    put(&mut page, format_args!(" Linux {}.", escape(&kernels.join(", "))));
    if all.boots.iter().any(|boot| boot.counts_instructions) {
        page += " The clock of the machine counts instructions: what caches cost is not in it, and its CPUs share one stream of \
                 instructions, so only ratios say something.";
    }
    page += "</p>";
    for cpus in all.machines() {
        let schedulers = all.schedulers(cpus);
        let lines: Vec<&Line> = all.lines.iter().filter(|line| line.cpus == cpus).collect();
        put(&mut page, format_args!("<h2>{cpus} CPUs</h2>"));
        picture(&mut page, &lines, schedulers.get(1..).unwrap_or_default());
        big_table(&mut page, &lines, &schedulers);
    }
    totals(&mut page, all);
    limits(&mut page, &all.limits);
    page += "<h2>What stood in the way</h2><ul>";
    for (cpus, incident) in all.incidents() {
        let scheduler = incident.scheduler.as_deref().unwrap_or("every scheduler");
        let text = format!("{cpus} CPUs, {}, {scheduler}: {}", incident.program, incident.what);
        put(&mut page, format_args!("<li>{}", escape(&text)));
    }
    page + "</ul></html>\n"
}

/// A string takes everything.
fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a string takes everything");
}

/// Each program's main figure and latencies: a mark for each scheduler, with a line from least to most.
fn picture(page: &mut String, lines: &[&Line], schedulers: &[&str]) {
    let drawn: Vec<&&Line> = lines.iter().filter(|line| line.measure.kind != Kind::Count).collect();
    let block = STEP * schedulers.len() as f64 + GAP;
    let height = block * drawn.len() as f64 + 60.0;
    put(page, format_args!("<svg width='{}' height='{height}' role='img'>", LEFT + WIDTH + 40.0));
    for (place, name) in schedulers.iter().enumerate() {
        let x = LEFT + 120.0 * place as f64;
        let (colour, name) = (colour(place), escape(name));
        put(
            page,
            format_args!("<circle cx='{x}' cy='10' r='4' fill='{colour}'/><text x='{}' y='14'>{name}</text>", x + 8.0),
        );
    }
    for tick in TICKS {
        let (at, colour) = (x(tick), if tick == 1.0 { "#222" } else { "#ddd" });
        put(page, format_args!("<line x1='{at}' x2='{at}' y1='25' y2='{}' stroke='{colour}'/>", height - 20.0));
        put(page, format_args!("<text x='{at}' y='{}' text-anchor='middle'>{tick}</text>", height - 5.0));
    }
    for (row, line) in drawn.iter().enumerate() {
        let top = 30.0 + block * row as f64;
        let name = escape(&format!("{} {}", line.program, line.measure.measure));
        put(page, format_args!("<text x='{}' y='{}' text-anchor='end'>{name}</text>", LEFT - 8.0, top + block / 2.0));
        for (place, scheduler) in schedulers.iter().enumerate() {
            let Some(cell) = line.cell(scheduler) else { continue };
            let (Some(cost), Some((least, most))) = (cell.cost, line.costs(cell)) else { continue };
            let (y, colour) = (top + STEP * (place as f64 + 0.5), colour(place));
            let title = escape(&format!("{scheduler}: {cost:.3} ({least:.3}–{most:.3})"));
            put(page, format_args!("<g stroke='{colour}' fill='{colour}'><title>{title}</title>"));
            put(page, format_args!("<line x1='{}' x2='{}' y1='{y}' y2='{y}' stroke-width='2'/>", x(least), x(most)));
            put(page, format_args!("<circle cx='{}' cy='{y}' r='3.5'/></g>", x(cost)));
        }
    }
    page.push_str("</svg>");
}

/// Where a cost is on the axis, which is logarithmic.
fn x(cost: f64) -> f64 {
    let (least, most) = ENDS;
    LEFT + WIDTH * (cost.clamp(least, most) / least).ln() / (most / least).ln()
}

fn colour(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}

/// Everything that was measured.
fn big_table(page: &mut String, lines: &[&Line], schedulers: &[&str]) {
    page.push_str("<table><tr><th>program<th>figure");
    for name in schedulers {
        put(page, format_args!("<th>{}", escape(name)));
    }
    for line in lines {
        put(page, format_args!("<tr><td>{}<td>{}", escape(&line.program), escape(&line.measure.measure)));
        for scheduler in schedulers {
            let Some(cell) = line.cell(scheduler) else {
                page.push_str("<td>–");
                continue;
            };
            let is_judged = line.measure.kind != Kind::Count;
            let background = cell.cost.filter(|_| is_judged).map_or(String::new(), background);
            let cost = cell.cost.map_or(String::new(), |cost| format!("{cost:.3} "));
            let (median, unit) = (number(cell.summary.median), escape(&line.measure.unit));
            let range = format!("{}–{}, n = {}", number(cell.summary.min), number(cell.summary.max), cell.summary.n);
            put(page, format_args!("<td{background}><b>{cost}</b>{median} {unit} <small>({range})</small>"));
        }
    }
    page.push_str("</table>");
}

/// The stronger the further from 1.
fn background(cost: f64) -> String {
    let off = cost.ln().abs();
    if off < NO_COLOUR {
        return String::new();
    }
    let (hue, light) = (if cost < 1.0 { 130 } else { 5 }, 92.0 - 40.0 * off.min(1.0));
    format!(" style='background:hsl({hue} 60% {light:.0}%)'")
}

fn totals(page: &mut String, all: &Applications) {
    page.push_str("<h2>Over all programs</h2><table><tr><th>scheduler<th>beside<th>CPUs<th>programs<th>geometric mean<th>worst<th>which");
    for total in &all.totals {
        put(page, format_args!("<tr><td>{}<td>{}", escape(&total.scheduler), escape(&total.beside)));
        put(page, format_args!("<td>{}<td>{}", total.cpus, total.programs));
        put(page, format_args!("<td{}>{:.3}", background(total.mean), total.mean));
        put(
            page,
            format_args!("<td{}>{:.3}<td>{}", background(total.worst), total.worst, escape(&total.worst_program)),
        );
    }
    page.push_str("</table>");
}

fn limits(page: &mut String, limits: &[Judged]) {
    page.push_str("<h2>Limits</h2><table><tr><th>limit<th>verdict<th>figure<th>at most");
    for judged in limits {
        let [name, figure, limit, verdict] = judged.cells();
        let class = if judged.met { "met" } else { "missed" };
        put(page, format_args!("<tr><td>{}<td class={class}>{verdict}<td>{figure}<td>{limit}", escape(&name)));
    }
    page.push_str("</table>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{boot, sample};
    use super::*;
    use crate::DEFAULT;

    #[test]
    fn gains_are_green_losses_are_red_and_what_is_the_same_has_no_colour() {
        assert!(background(0.8).contains("hsl(130"));
        assert!(background(1.3).contains("hsl(5 "));
        assert_eq!(background(1.01), "");
    }

    #[test]
    fn the_page_has_every_value_and_needs_nothing_else() {
        let samples = vec![
            sample("a<b", Kind::Rate, DEFAULT, 100.0),
            sample("a<b", Kind::Rate, "wfq", 50.0),
            sample("a<b", Kind::Count, "wfq", 777.0),
        ];
        let page = Applications::new(vec![boot(2, samples)]).to_page();
        for part in ["2 CPUs", "a&lt;b", "<b>2.000 </b>50.000 s", "777 s", "<circle", "geometric mean", "wfq: 2.000"] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("http") && !page.contains("<script"), "{page}");
    }

    #[test]
    fn one_is_to_the_right_of_a_gain_and_to_the_left_of_a_loss() {
        assert!(x(0.9) < x(1.0) && x(1.0) < x(1.1));
        assert_eq!(x(100.0), LEFT + WIDTH);
    }
}
