//! Histograms of waits side by side as a page of their own, as the figures of papers/003 have them. It has no program: the
//! pictures are in it as they are.

use std::fmt::Write as _;

use crate::Histogram;

/// The style of a page for traces, so that both look alike.
const STYLE: &str = "
:root { color-scheme: light dark; --paper: #f7f7f5; --ground: #ffffff; --text: #1c1e21; --faint: #6a6f76; --line: #d9dadd;
  --bar: #5a8fb0; --mark: #c04a00; }
@media (prefers-color-scheme: dark) { :root { --paper: #17191d; --ground: #0b0c0e; --text: #e8e8e6; --faint: #9ba1a9;
  --line: #33373d; --bar: #56a0d0; --mark: #ff8c42; } }
body { margin: 0; padding: 10px 14px; background: var(--paper); color: var(--text); font: 14px/1.4 system-ui, sans-serif; }
h1 { font-size: 18px; margin: 0 0 8px; }
p { color: var(--faint); margin: 2px 0 10px; max-width: 72em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-bottom: 14px; }
th, td { text-align: right; padding: 2px 14px 2px 0; border-bottom: 1px solid var(--line); font-weight: normal; }
th:first-child { text-align: left; }
thead th { color: var(--faint); }
main { display: flex; flex-wrap: wrap; gap: 14px; }
figure { margin: 0; background: var(--ground); border: 1px solid var(--line); border-radius: 5px; padding: 8px 10px; }
figcaption { font-weight: 600; }
svg text { fill: var(--faint); font-size: 11px; }
svg rect { fill: var(--bar); }
svg line { stroke: var(--line); }
svg line.mark { stroke: var(--mark); }
svg text.mark { fill: var(--mark); }
";

// The size of a picture, in pixels.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 44.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 34.0;

/// Percentiles that are listed, and those of them that are drawn.
const PARTS: [(f64, &str, bool); 4] =
    [(0.5, "50 %", true), (0.9, "90 %", false), (0.99, "99 %", true), (0.999, "99.9 %", false)];

/// Waits under one scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The scheduler, or whatever tells it from the others.
    pub name: String,
    /// A remark about it, if there is one.
    pub note: Option<String>,
    /// How long tasks waited.
    pub waits: Histogram,
}

/// A page that stands alone: a table, and a picture of each with the same axes.
pub fn compare(heading: &str, all: &[Compared]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{heading}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n\
         <p>A wait begins when a task is woken up or loses its CPU, and ends when it runs. A bar is the part of all waits that \
         took from one power of two nanoseconds to the next; percentiles are at most a quarter more than what they are.</p>\n",
        heading = escape(heading)
    );
    page += &table(all);
    page += "<main>\n";
    let doublings: Vec<_> = all.iter().map(|compared| bars(&compared.waits)).collect();
    let bounds = doublings.iter().flatten().map(|(power, _)| *power);
    let (from, to) = (bounds.clone().min().unwrap_or(0), bounds.max().unwrap_or(0) + 1);
    let most = doublings.iter().flatten().map(|(_, share)| *share).fold(0.0, f64::max);
    for (compared, bars) in all.iter().zip(&doublings) {
        page += &figure(compared, bars, &Axes { from, to, most });
    }
    page + "</main>\n</body>\n</html>\n"
}

/// What all pictures share: powers of two, in nanoseconds, and the highest bar.
struct Axes {
    from: i32,
    to: i32,
    most: f64,
}

impl Axes {
    fn x(&self, power: f64) -> f64 {
        LEFT + (WIDTH - LEFT) * (power - f64::from(self.from)) / f64::from(self.to - self.from)
    }

    fn y(&self, share: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share / self.most.max(f64::MIN_POSITIVE)
    }
}

/// Powers of two at which bars begin, and the part of all that each is.
fn bars(waits: &Histogram) -> Vec<(i32, f64)> {
    let power = |from_ns: u64| from_ns.checked_ilog2().map_or(-1, |power| power as i32);
    let share = |count: u64| count as f64 / waits.count.max(1) as f64;
    waits.doublings().into_iter().map(|(from_ns, _, count)| (power(from_ns), share(count))).collect()
}

fn table(all: &[Compared]) -> String {
    let mut table = "<table>\n<thead><tr><th>scheduler</th><th>waits</th><th>mean</th>".to_owned();
    PARTS.iter().for_each(|(_, name, _)| table += &format!("<th>{name}</th>"));
    table += "<th>longest</th></tr></thead>\n<tbody>\n";
    for Compared { name, note, waits } in all {
        let note = note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
        table += &format!("<tr><th>{}</th><td>{}</td>", escape(&(name.clone() + &note)), waits.count);
        let parts = PARTS.iter().map(|(part, ..)| waits.percentile_ns(*part));
        for ns in [waits.mean_ns()].into_iter().chain(parts).chain([waits.max_ns]) {
            table += &format!("<td>{}</td>", duration(ns));
        }
        table += "</tr>\n";
    }
    table + "</tbody>\n</table>\n"
}

fn figure(compared: &Compared, bars: &[(i32, f64)], axes: &Axes) -> String {
    let Compared { name, waits, .. } = compared;
    let mut figure = format!(
        "<figure>\n<figcaption>{}</figcaption>\n<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" \
         aria-label=\"{} waits\">\n",
        escape(name),
        waits.count
    );
    let mut put = |line: String| writeln!(figure, "{line}").expect("a string takes everything");
    for part in [0.0, 0.5, 1.0] {
        let (y, share) = (axes.y(axes.most * part), axes.most * part * 100.0);
        put(format!("<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"));
        put(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{share:.1} %</text>", LEFT - 4.0, y + 4.0));
    }
    for (power, share) in bars {
        let (x, y) = (axes.x(f64::from(*power)), axes.y(*share));
        let (from, to) = (edge(*power), edge(power + 1));
        put(format!(
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{from} to {to}: {:.2} %</title></rect>",
            x + 1.0,
            axes.x(f64::from(power + 1)) - x - 2.0,
            HEIGHT - BOTTOM - y,
            share * 100.0
        ));
    }
    // At most eight, so that they do not run into each other.
    let step = (axes.to - axes.from).div_euclid(8) + 1;
    for power in (axes.from..=axes.to).step_by(step as usize) {
        let (x, y) = (axes.x(f64::from(power)), HEIGHT - BOTTOM + 14.0);
        let anchor = if x + 20.0 > WIDTH { "end" } else { "middle" };
        put(format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", edge(power)));
    }
    for (row, (part, name, _)) in PARTS.iter().filter(|(.., is_drawn)| *is_drawn && waits.count > 0).enumerate() {
        let x = axes.x((waits.percentile_ns(*part).max(1) as f64).log2()).clamp(LEFT, WIDTH);
        let y = TOP - 14.0 + 12.0 * row as f64;
        let (anchor, at) = if x > WIDTH / 2.0 { ("end", x - 4.0) } else { ("start", x + 4.0) };
        let to = HEIGHT - BOTTOM;
        put(format!("<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{to:.1}\"/>", y - 8.0));
        put(format!("<text class=\"mark\" x=\"{at:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{name}</text>"));
    }
    figure + "</svg>\n</figure>\n"
}

/// A power of two, as a time.
fn edge(power: i32) -> String {
    duration(if power < 0 { 0 } else { 1_u64.checked_shl(power as u32).unwrap_or(u64::MAX) })
}

/// A time in a unit in which it is short.
fn duration(ns: u64) -> String {
    let (number, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if number < 10.0 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, waits_ns: &[u64]) -> Compared {
        let mut waits = Histogram::default();
        waits_ns.iter().for_each(|ns| waits.add(*ns));
        Compared { name: name.into(), note: None, waits }
    }

    #[test]
    fn those_that_are_compared_have_the_same_axes() {
        let page = compare("waits", &[of("one", &[1_500, 1_600]), of("other", &[3_000_000])]);
        // The first bar of the one begins where the axis of the other does, and both are as high as can be.
        assert_eq!(page.matches("<title>1.0 µs to 2.0 µs: 100.00 %</title>").count(), 1);
        assert_eq!(page.matches("<title>2.1 ms to 4.2 ms: 100.00 %</title>").count(), 1);
        assert_eq!(page.matches(">1.0 µs</text>").count(), 2);
        assert_eq!(page.matches("<rect ").count(), 2);
        assert_eq!(page.matches(&format!(" y=\"{TOP:.1}\" ")).count(), 2);
    }

    #[test]
    fn a_name_is_no_markup_and_none_that_waited_is_no_error() {
        let page = compare("a < b", &[of("<script>", &[])]);
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;") && page.contains("a &lt; b"));
        assert!(!page.contains("NaN") && !page.contains("inf"));
        assert!(compare("none", &[]).contains("</html>"));
    }
}
