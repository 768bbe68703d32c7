//! Says what goes on: a spinner with the time on a terminal, a line for each step elsewhere.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// The variable that leaves the time out: somebody else shows it already.
pub(crate) const PLAIN: &str = "EKIDEN_PLAIN_PROGRESS";

/// Steps are shown on standard error, so that results can be piped.
pub(crate) struct Progress {
    start: Instant,
    step: Option<Step>,
}

struct Step {
    text: String,
    start: Instant,
    spinner: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), step: None }
    }

    /// Begins a step; the one before has ended.
    pub(crate) fn step(&mut self, text: impl Into<String>) {
        self.end_step();
        let text = text.into();
        let spinner = std::io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner().with_message(text.clone());
            spinner.set_style(
                ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}").expect("the template is well-formed"),
            );
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        if spinner.is_none() {
            self.line(&text);
        }
        self.step = Some(Step { text, start: Instant::now(), spinner });
    }

    /// Says something within a step.
    pub(crate) fn note(&mut self, text: &str) {
        match self.step.as_ref().and_then(|step| Some((step, step.spinner.as_ref()?))) {
            Some((step, spinner)) => spinner.set_message(format!("{}: {text}", step.text)),
            None => self.line(&format!("  {text}")),
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
    pub(crate) fn sink(&mut self) -> impl FnMut(&str) + '_ {
        |line| self.note(line)
    }

    /// Ends the last step. Something else may be printed after that.
    pub(crate) fn end_step(&mut self) {
        let Some(step) = self.step.take() else { return };
        if let Some(spinner) = step.spinner {
            spinner.finish_and_clear();
            eprintln!("{:>8.1} s  {}", step.start.elapsed().as_secs_f64(), step.text);
        }
    }

    /// Since the first step.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end_step();
    }
}
