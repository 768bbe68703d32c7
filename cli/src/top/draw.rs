//! How a page looks: the policies in a table, the CPUs below it.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Rect},
    style::{Color, Modifier, Style, Stylize},
    text::{Line, Span, Text},
    widgets::{Row, Table, Widget},
};

use super::page::{Cpu, Page, Policy, Wait};
use crate::{figures::amount, status::said_in};

/// What each CPU takes, with the gap to the next, and what more if it is known what is wasted.
const CPU_COLUMNS: u16 = 34;
const WASTED_COLUMNS: u16 = 7;
const BAR: usize = 12;
/// Where the text of a line begins, behind the word that says what it is. Text that does not fit continues in the next line, in the same column.
const TEXT: usize = 11;
/// Queues of a policy that are shown one by one.
const QUEUES: usize = 4;

/// What the user has chosen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    /// Whether keys are read.
    pub(super) has_keys: bool,
}

/// What the policies are sorted by; the greatest come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// The order in which they are asked.
    #[default]
    Order,
    Picks,
    Tasks,
    Migrations,
}

impl Sort {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Order => Self::Picks,
            Self::Picks => Self::Tasks,
            Self::Tasks => Self::Migrations,
            Self::Migrations => Self::Order,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Order => "order in which they are asked",
            Self::Picks => "picks",
            Self::Tasks => "tasks",
            Self::Migrations => "migrations",
        }
    }

    fn sorted(self, policies: &[Policy]) -> Vec<&Policy> {
        let key = |policy: &&Policy| match self {
            Self::Order => 0.0,
            Self::Picks => policy.picks_per_s.unwrap_or(0.0),
            Self::Tasks => policy.tasks as f64,
            Self::Migrations => policy.migrations_per_s.unwrap_or(0.0),
        };
        let mut sorted: Vec<&Policy> = policies.iter().collect();
        sorted.sort_by(|a, b| key(b).total_cmp(&key(a)));
        sorted
    }
}

/// Draws a page as far as there is room.
pub(super) fn draw(page: &Page, view: View, area: Rect, buffer: &mut Buffer) {
    let keys = u16::from(view.has_keys);
    let mut room = Rect { height: area.height.saturating_sub(keys), ..area };
    for line in head(page) {
        put_whole(&line, &mut room, buffer);
    }
    if !page.policies.is_empty() {
        let height = (page.policies.len() as u16 + 1).min(room.height);
        table(&view.sort.sorted(&page.policies), room.width).render(Rect { height, ..room }, buffer);
        skip(&mut room, height);
    }
    for line in below_table(page, area.width) {
        put_whole(&line, &mut room, buffer);
    }
    skip(&mut room, 1);
    cpus(&page.cpus, room, buffer);
    if view.has_keys {
        let mut bottom = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..area };
        put(&footer(view), &mut bottom, buffer);
    }
}

/// The whole page as text.
pub(super) fn text(page: &Page, width: u16) -> String {
    let rows = page.cpus.len().div_ceil(usize::from(width / cpu_columns(&page.cpus)).max(1));
    let lines_of = |line: &Line<'_>| wrapped(line, width).len();
    let texts: usize = head(page).iter().chain(&below_table(page, width)).map(lines_of).sum();
    let height = texts + page.policies.len() + 1 + 1 + rows + 1;
    let area = Rect::new(0, 0, width, height.min(usize::from(u16::MAX)) as u16);
    let mut buffer = Buffer::empty(area);
    draw(page, View::default(), area, &mut buffer);
    lines(&buffer).join("\n").trim_end().to_owned() + "\n"
}

/// The rows of a buffer without the blanks at their ends.
pub(super) fn lines(buffer: &Buffer) -> Vec<String> {
    let row = |cells: &[ratatui::buffer::Cell]| -> String { cells.iter().map(ratatui::buffer::Cell::symbol).collect() };
    let width = usize::from(buffer.area.width).max(1);
    buffer.content.chunks(width).map(|cells| row(cells).trim_end().to_owned()).collect()
}

/// What stands between the policies and the CPUs.
fn below_table(page: &Page, width: u16) -> Vec<Line<'static>> {
    [params(page, width), own_figures(page), queues(page), faults(page), waits(page)].concat()
}

/// A line as so many as it takes in this width, broken between words.
fn wrapped(line: &Line<'_>, width: u16) -> Vec<Line<'static>> {
    let letters: Vec<(char, Style)> =
        line.spans.iter().flat_map(|span| span.content.chars().map(|letter| (letter, span.style))).collect();
    let line = |indent: usize, letters: &[(char, Style)]| {
        let spans = letters
            .chunk_by(|a, b| a.1 == b.1)
            .map(|chunk| Span::styled(chunk.iter().map(|(letter, _)| letter).collect::<String>(), chunk[0].1));
        Line::from_iter([Span::raw(" ".repeat(indent))].into_iter().chain(spans))
    };
    let (mut lines, mut rest, mut indent) = (Vec::new(), &letters[..], 0);
    loop {
        let room = usize::from(width).saturating_sub(indent).max(1);
        if rest.len() <= room {
            lines.push(line(indent, rest));
            return lines;
        }
        // Not between the word that says what it is and the first of the text.
        let first = if indent == 0 { TEXT + 1 } else { 1 };
        let end = (first..=room).rev().find(|at| rest[*at].0 == ' ').unwrap_or(room);
        lines.push(line(indent, &rest[..end]));
        let blanks = rest[end..].iter().take_while(|(letter, _)| *letter == ' ').count();
        rest = &rest[end + blanks..];
        indent = TEXT.min(usize::from(width) / 2);
    }
}

/// The whole line, in several if need be.
fn put_whole(line: &Line<'_>, room: &mut Rect, buffer: &mut Buffer) {
    for line in wrapped(line, room.width) {
        put(&line, room, buffer);
    }
}

fn put(line: &Line<'_>, room: &mut Rect, buffer: &mut Buffer) {
    if room.height > 0 {
        buffer.set_line(room.x, room.y, line, room.width);
    }
    skip(room, 1);
}

fn skip(room: &mut Rect, rows: u16) {
    let rows = rows.min(room.height);
    room.y += rows;
    room.height -= rows;
}

fn head(page: &Page) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(vec!["scheduler  ".bold(), Span::raw(page.scheduler.clone())])];
    if page.policies.is_empty() {
        lines.push(Line::raw(
            "No policy runs. Start one with `sudo ekiden run wfq`, or look at one with `ekiden sim pipe -p wfq`.",
        ));
        return lines;
    }
    let state = if page.attached { "" } else { "; the kernel does not call them" };
    let tasks = format!("{} of {}{state}", page.tasks, page.tasks_max);
    lines.push(Line::from(vec!["tasks      ".bold(), Span::raw(tasks)]));
    lines.push(Line::default());
    lines
}

/// Which columns of the table there is room for, and how wide they are.
fn widths(policies: &[&Policy], room: u16) -> Vec<(usize, u16)> {
    let longest = |text: fn(&Policy) -> &str| {
        policies.iter().map(|policy| text(policy).chars().count()).max().unwrap_or(0).min(usize::from(u16::MAX)) as u16
    };
    let name = longest(|policy| &policy.name).clamp(6, 24);
    let mut widths: Vec<(usize, u16)> = (0..).zip([name, 6, 0, 7, 5, 8, 7, 7, 8, 10, 9]).collect();
    let sum = |widths: &[(usize, u16)]| widths.iter().map(|(_, width)| width + 1).sum::<u16>() - 1;
    // All of the parameters or none: a few letters of them say nothing, and they have a line of their own where they have no column.
    let params = longest(|policy| &policy.params).max(10);
    if sum(&widths) + params <= room {
        widths[PARAMETERS].1 = params;
    } else {
        widths.retain(|(column, _)| *column != PARAMETERS);
    }
    for dropped in FIRST_TO_GO {
        if sum(&widths) > room {
            widths.retain(|(column, _)| *column != dropped);
        }
    }
    widths
}

/// The column of the parameters.
const PARAMETERS: usize = 2;

/// The columns that are left out where there is too little room, in this order: searches in vain, moves, refusals, tasks, numbers.
const FIRST_TO_GO: [usize; 5] = [6, 7, 8, 3, 1];

/// The parameters of each policy, if the table has no room for them.
fn params(page: &Page, width: u16) -> Vec<Line<'static>> {
    let policies: Vec<&Policy> = page.policies.iter().collect();
    if widths(&policies, width).iter().any(|(column, _)| *column == PARAMETERS) {
        return Vec::new();
    }
    let with = policies.iter().filter(|policy| !policy.params.is_empty());
    let line = |policy: &&Policy| {
        Line::from(vec!["parameters ".bold(), Span::raw(format!("{}: {}", policy.name, policy.params))])
    };
    with.map(line).collect()
}

/// What each policy counts itself.
fn own_figures(page: &Page) -> Vec<Line<'static>> {
    let with = page.policies.iter().filter(|policy| !policy.figures.is_empty());
    let line = |policy: &Policy| {
        let amounts = policy.figures.iter().map(|figure| format!("{} {}", figure.name, amount(&figure.value)));
        let text = format!("{}: {}", policy.name, amounts.collect::<Vec<_>>().join("; "));
        Line::from(vec!["counts     ".bold(), Span::raw(text)])
    };
    with.map(line).collect()
}

fn table(policies: &[&Policy], room: u16) -> Table<'static> {
    let right = |text: String| Text::from(text).right_aligned();
    let widths = widths(policies, room);
    let chosen = |cells: [Text<'static>; 11]| {
        let mut cells: Vec<_> = cells.into_iter().map(Some).collect();
        widths.iter().filter_map(|(column, _)| cells[*column].take()).collect::<Vec<_>>()
    };
    let row = |policy: &&Policy| {
        let (state, style) = match (policy.alive, policy.default) {
            (false, _) => ("taken out", Style::new().fg(Color::Red)),
            (true, true) => ("default", Style::new()),
            (true, false) => ("", Style::new()),
        };
        let cells = [
            Text::from(policy.name.clone()),
            right(policy.number.to_string()),
            Text::from(policy.params.clone()),
            right(policy.tasks.to_string()),
            right(policy.share_percent.map_or("–".into(), |percent| format!("{percent:.0} %"))),
            right(rate(policy.picks_per_s)),
            right(rate(policy.idle_searches_per_s)),
            right(rate(policy.migrations_per_s)),
            right(policy.refusals.to_string()),
            right(policy.contract_violations.to_string()),
            Text::from(state),
        ];
        Row::new(chosen(cells)).style(style)
    };
    let header = [
        Text::from("policy"),
        right("number".into()),
        Text::from("parameters"),
        right("tasks".into()),
        right("share".into()),
        right("picks/s".into()),
        right("idle/s".into()),
        right("moves/s".into()),
        right("refusals".into()),
        right("violations".into()),
        Text::from("state"),
    ];
    let rows: Vec<Row<'static>> = policies.iter().map(row).collect();
    let header = Row::new(chosen(header)).style(Modifier::BOLD);
    let widths = widths.iter().map(|(_, width)| Constraint::Length(*width));
    Table::new(rows, widths).column_spacing(1).header(header)
}

/// What programs say to policies, and the queues by which they do.
fn queues(page: &Page) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for policy in &page.policies {
        let Some(queues) = &policy.queues else { continue };
        let (rate, sums) = (rate(policy.hints_per_s), said_in(&queues.counts));
        let text = format!("{}: {} open of {}, {rate} hints/s; {sums}", policy.name, queues.open, queues.opened);
        lines.push(Line::from(vec!["queues     ".bold(), Span::raw(text)]));
        lines.extend(queues.list.iter().take(QUEUES).map(|queue| {
            let said = said_in(&queue.counts);
            Line::raw(format!("           queue {} of process {}: {said}", queue.queue, queue.owner))
        }));
    }
    lines
}

fn faults(page: &Page) -> Vec<Line<'static>> {
    let of_policy = |policy: &Policy| {
        let fault = policy.fault.as_ref()?;
        Some(format!("{}, number {}: {fault}", policy.name, policy.number))
    };
    let of_policies = page.policies.iter().filter_map(of_policy).map(|fault| ("fault      ", fault));
    let last = page.last_fault.iter().map(|fault| ("last fault ", fault.clone()));
    let line = |(what, fault): (&'static str, String)| Line::from(vec![what.bold(), Span::raw(fault).fg(Color::Red)]);
    of_policies.chain(last).map(line).collect()
}

fn waits(page: &Page) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(wasted) = page.wasted_cpus {
        let text = format!("{wasted:.2} CPUs, idle while tasks waited that could use them");
        lines
            .push(Line::from(vec!["wasted     ".bold(), if wasted > 0.0 { text.fg(Color::Red) } else { text.into() }]));
    }
    for (number, wait) in page.waits.iter().enumerate() {
        let now = wait.waits_ms.map_or(String::new(), |waits_ms| format!(", now for {waits_ms:.1} ms"));
        let Wait { pid, name, cpu, waited_ms, .. } = wait;
        let head = if number == 0 { "waited     " } else { "           " };
        lines.push(Line::from(vec![
            head.bold(),
            Span::raw(format!("{waited_ms:>7.1} ms  {name} {pid} on CPU {cpu}{now}")),
        ]));
    }
    if let Some(trouble) = &page.watch_trouble {
        lines.push(Line::from(vec!["waits      ".bold(), Span::raw(format!("not known: {trouble}"))]));
    }
    lines
}

fn has_wasted(cpus: &[Cpu]) -> bool {
    cpus.iter().any(|cpu| cpu.wasted_percent.is_some())
}

fn cpu_columns(cpus: &[Cpu]) -> u16 {
    CPU_COLUMNS + if has_wasted(cpus) { WASTED_COLUMNS } else { 0 }
}

/// The CPUs, one below the other, in as many columns as there is room for.
fn cpus(cpus: &[Cpu], room: Rect, buffer: &mut Buffer) {
    if cpus.is_empty() || room.height < 2 {
        return;
    }
    let width = cpu_columns(cpus);
    let columns = usize::from(room.width / width).clamp(1, cpus.len());
    let rows = cpus.len().div_ceil(columns);
    let header = match (cpus.iter().any(|cpu| cpu.waiting.is_some()), has_wasted(cpus)) {
        (_, true) => "busy waiting wasted",
        (true, _) => "busy waiting",
        _ => "busy",
    };
    let header = Line::from(format!(" cpu {:BAR$}   {header}", "").bold());
    for (column, cpus) in cpus.chunks(rows).enumerate() {
        let mut room = room;
        room.x += column as u16 * width;
        room.width = room.width.saturating_sub(column as u16 * width);
        put(&header, &mut room, buffer);
        let shown = if cpus.len() > usize::from(room.height) { usize::from(room.height) - 1 } else { cpus.len() };
        for cpu in &cpus[..shown] {
            put(&line(cpu), &mut room, buffer);
        }
        if shown < cpus.len() {
            put(&Line::raw(format!("     and {} more", cpus.len() - shown)), &mut room, buffer);
        }
    }
}

fn line(cpu: &Cpu) -> Line<'static> {
    let busy = cpu.busy_percent.unwrap_or(0.0);
    let full = (busy / 100.0 * BAR as f64).round() as usize;
    let (full, empty) = ("█".repeat(full), "·".repeat(BAR - full));
    let percent = cpu.busy_percent.map_or("–".into(), |busy| format!("{busy:.0} %"));
    let waiting = cpu.waiting.map_or(String::new(), |waiting| format!("{waiting:.1}"));
    let wasted = cpu.wasted_percent.map_or(String::new(), |wasted| format!(" {:>6}", format!("{wasted:.0} %")));
    Line::from(vec![
        Span::raw(format!("{:>4} ", cpu.cpu)),
        full.fg(Color::Green),
        empty.dim(),
        Span::raw(format!(" {percent:>6} {waiting:>7}")),
        if cpu.wasted_percent > Some(0.0) { wasted.fg(Color::Red) } else { wasted.into() },
    ])
}

fn footer(view: View) -> Line<'static> {
    let pause = if view.is_paused { "goes on" } else { "pauses" };
    let keys = format!(" q ends   s sorts (now by {})   space {pause} ", view.sort.in_words());
    let mut line = Line::from(vec![Span::raw(keys).reversed()]);
    if view.is_paused {
        line.push_span(" PAUSED".bold());
    }
    line
}

/// Per second: what is rare with a decimal.
fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "–".into(),
        Some(rate) if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}
