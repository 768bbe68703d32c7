//! Shows progress: a spinner with the time on a terminal; elsewhere a line for each step, and one a second as long as
//! nothing else is said.

use std::{
    io::IsTerminal,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// The variable that leaves the time out: the calling process shows it already.
pub const PLAIN: &str = "EKIDEN_PLAIN_PROGRESS";

/// How often a spinner turns.
const TICK: Duration = Duration::from_millis(120);

/// After so much silence a step is said again. Two seconds is what people should have to wait at most.
const BEAT: Duration = Duration::from_secs(1);

/// Steps are shown on standard error, so that results can be piped.
pub struct Progress {
    start: Instant,
    step: Option<Step>,
}

struct Step {
    text: String,
    start: Instant,
    spinner: Option<ProgressBar>,
    kind: Kind,
    heart: Heart,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Said when it begins, and how long it took.
    Plain,
    /// Nothing is shown if it takes no time.
    Brief,
    /// Lasts until Ctrl-C: a log has one line of it, not one each second.
    Open,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Without a step yet; time is counted from here.
    pub fn new() -> Self {
        Self { start: Instant::now(), step: None }
    }

    /// A step that is shown only if it takes a while: most often it does not. It ends when this is dropped.
    pub fn brief(text: impl Into<String>) -> Self {
        let mut progress = Self::new();
        progress.begin(text.into(), Kind::Brief);
        progress
    }

    /// A step that lasts until Ctrl-C. It ends when this is dropped.
    pub fn open(text: impl Into<String>) -> Self {
        let mut progress = Self::new();
        progress.begin(text.into(), Kind::Open);
        progress
    }

    /// Begins a step; the one before has ended.
    pub fn step(&mut self, text: impl Into<String>) {
        self.begin(text.into(), Kind::Plain);
    }

    fn begin(&mut self, text: String, kind: Kind) {
        self.end_step();
        let spinner = std::io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner().with_message(text.clone());
            spinner.set_style(
                ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}").expect("the template is well-formed"),
            );
            spinner
        });
        match kind {
            Kind::Plain if spinner.is_none() => self.line(&text),
            Kind::Open if spinner.is_none() => eprintln!("{text}"),
            _ => {}
        }
        let start = Instant::now();
        let heart = match spinner.clone() {
            Some(spinner) if kind == Kind::Brief => Heart::start(BEAT, move || spinner.enable_steady_tick(TICK)),
            Some(spinner) => {
                spinner.enable_steady_tick(TICK);
                Heart::default()
            }
            // The program that shows these lines has a heartbeat of its own.
            None if kind == Kind::Open || std::env::var_os(PLAIN).is_some() => Heart::default(),
            None => {
                let text = text.clone();
                Heart::start(BEAT, move || eprintln!("{text}, {} s", start.elapsed().as_secs()))
            }
        };
        self.step = Some(Step { text, start, spinner, kind, heart });
    }

    /// Prints something that is no progress, past the spinner.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        match self.step.as_ref().and_then(|step| step.spinner.as_ref()) {
            Some(spinner) => spinner.suspend(print),
            None => print(),
        }
    }

    /// Says something within a step.
    pub fn note(&mut self, text: &str) {
        match self.step.as_ref().and_then(|step| Some((step, step.spinner.as_ref()?))) {
            Some((step, spinner)) => spinner.set_message(format!("{}: {text}", step.text)),
            None => {
                self.line(&format!("  {text}"));
                self.step.iter().for_each(|step| step.heart.rest());
            }
        }
    }

    fn line(&self, text: &str) {
        if std::env::var_os(PLAIN).is_some() {
            eprintln!("{text}");
        } else {
            eprintln!("[{:>6.1} s] {text}", self.start.elapsed().as_secs_f64());
        }
    }

    /// What libraries tell their progress to.
    pub fn sink(&mut self) -> impl FnMut(&str) + '_ {
        |line| self.note(line)
    }

    /// Ends the last step. Something else may be printed after that.
    pub fn end_step(&mut self) {
        let Some(step) = self.step.take() else { return };
        // Later messages must come after this one.
        drop(step.heart);
        if let Some(spinner) = step.spinner {
            spinner.finish_and_clear();
            if step.kind != Kind::Plain {
                return;
            }
            eprintln!("{:>8.1} s  {}", step.start.elapsed().as_secs_f64(), step.text);
        }
    }

    /// Since the first step.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end_step();
    }
}

/// Does something again and again, from a thread, until it is dropped.
#[derive(Default)]
struct Heart {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_over: bool,
    rested: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heart {
    fn start(every: Duration, mut beat: impl FnMut() + Send + 'static) -> Self {
        let shared = Arc::<Shared>::default();
        let seen = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut state = seen.lock();
            while !state.is_over {
                let before = state.rested;
                let (next, timeout) = seen
                    .changed
                    .wait_timeout_while(state, every, |state| !state.is_over && state.rested == before)
                    .unwrap_or_else(PoisonError::into_inner);
                state = next;
                if timeout.timed_out() {
                    beat();
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Something was said: the next beat comes the whole time after this.
    fn rest(&self) {
        self.shared.lock().rested += 1;
        self.shared.changed.notify_one();
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A beat that panics has been told of.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const EVERY: Duration = Duration::from_millis(200);

    #[test]
    fn a_silent_step_is_said_again_and_again_until_it_ends() {
        let (sender, beats) = channel();
        let heart = Heart::start(EVERY, move || sender.send(()).unwrap());
        assert!((0..3).all(|_| beats.recv_timeout(EVERY * 20).is_ok()));
        drop(heart);
        beats.try_iter().for_each(drop);
        assert!(beats.recv().is_err(), "it beats after its end");
    }

    #[test]
    fn what_is_said_meanwhile_puts_the_beat_off() {
        let (sender, beats) = channel();
        let heart = Heart::start(Duration::from_secs(60), move || sender.send(()).unwrap());
        heart.rest();
        drop(heart);
        assert!(beats.recv().is_err());
    }
}
