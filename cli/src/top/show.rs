//! The page is printed, or drawn on a terminal again and again.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ratatui::{
    DefaultTerminal,
    crossterm::{
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        terminal,
    },
};

use super::{
    Top,
    draw::{View, draw, text},
    page::Page,
    sample::Sample,
    watch::Watch,
};
use crate::{
    failure::{Exit, Failure},
    progress::Progress,
    signals,
};

/// From one look at the run queues to the next; a signal may have to wait for as long.
const LOOK: Duration = Duration::from_millis(20);

/// The width of the text where no terminal says its own.
const COLUMNS: u16 = 120;

impl Top {
    pub(super) fn show(self) -> Result<ExitCode> {
        if self.once || self.json {
            self.print()?;
        } else if io::stdout().is_terminal() && io::stdin().is_terminal() {
            self.live()?;
        } else {
            let message = "`ekiden top` needs a terminal; elsewhere use --once or --json";
            return Err(Failure::new(Exit::Usage, message).into());
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self) -> Result<()> {
        let mut watch = Watch::open();
        let first = Instant::now();
        let mut before = Sample::take(first, &mut watch)?;
        loop {
            // Pages that follow each other need no progress line between them.
            let watching = self.once.then(|| Progress::brief("watching what runs"));
            let next = before.at + self.interval;
            while first.elapsed() < next {
                thread::sleep(next.saturating_sub(first.elapsed()).min(LOOK));
                watch.look();
            }
            let after = Sample::take(first, &mut watch)?;
            drop(watching);
            let page = Page::between(&before, &after);
            let mut stdout = io::stdout().lock();
            if self.json {
                writeln!(stdout, "{}", serde_json::to_string(&page)?)?;
            } else {
                let width =
                    if stdout.is_terminal() { terminal::size().map_or(COLUMNS, |(width, _)| width) } else { COLUMNS };
                write!(stdout, "{}", text(&page, width))?;
            }
            stdout.flush()?;
            if self.once {
                return Ok(());
            }
            before = after;
        }
    }

    fn live(&self) -> Result<()> {
        let ended = Arc::new(AtomicBool::new(false));
        let told = ended.clone();
        let _signals = signals::handle(move |_| told.store(true, Relaxed)).context("cannot watch for signals")?;
        let mut watch = Watch::open();
        let mut screen = Screen::open()?;
        let first = Instant::now();
        let mut before = Sample::take(first, &mut watch)?;
        let mut page = Page::between(&before, &before);
        let mut view = View { has_keys: true, ..View::default() };
        while !ended.load(Relaxed) {
            screen.0.draw(|frame| draw(&page, view, frame.area(), frame.buffer_mut())).context("cannot draw")?;
            let next = before.at + self.interval;
            match wait(next.saturating_sub(first.elapsed()), view.is_paused, &ended, &mut watch)? {
                Wish::Nothing if view.is_paused => {}
                Wish::Nothing if first.elapsed() < next => {}
                Wish::Nothing => {
                    let after = Sample::take(first, &mut watch)?;
                    page = Page::between(&before, &after);
                    before = after;
                }
                Wish::End => break,
                Wish::Sort => view.sort = view.sort.next(),
                Wish::Pause => view.is_paused = !view.is_paused,
            }
        }
        Ok(())
    }
}

/// What a key, or none, stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    End,
    Sort,
    Pause,
}

/// Waits for a key, until it is time to look again, or until a signal has come.
fn wait(time: Duration, is_paused: bool, ended: &AtomicBool, watch: &mut Watch) -> Result<Wish> {
    let start = Instant::now();
    while !ended.load(Relaxed) {
        let left = time.saturating_sub(start.elapsed());
        if left.is_zero() && !is_paused {
            break;
        }
        if event::poll(if is_paused { LOOK } else { left.min(LOOK) }).context("cannot read the terminal")? {
            return Ok(match event::read().context("cannot read the terminal")? {
                Event::Key(key) => wish(key),
                // Most others are a terminal of another size, on which everything has to be drawn again.
                _ => Wish::Nothing,
            });
        }
        watch.look();
    }
    Ok(Wish::Nothing)
}

pub(super) fn wish(key: KeyEvent) -> Wish {
    match (key.kind, key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
        (KeyEventKind::Release, ..) => Wish::Nothing,
        (_, KeyCode::Char('c'), true) | (_, KeyCode::Char('q') | KeyCode::Esc, false) => Wish::End,
        (_, KeyCode::Char('s'), false) => Wish::Sort,
        (_, KeyCode::Char(' '), false) => Wish::Pause,
        _ => Wish::Nothing,
    }
}

/// A terminal that is as it was when this is dropped, and in a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self> {
        // Also sets a hook that gives the terminal back before a panic is reported.
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore()).context("cannot take over the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
