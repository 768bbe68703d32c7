//! Which CPU continues: at random, by priorities that change now and then, or everything there is.

use ekiden_workload::random::Random;
use serde::Serialize;

/// How to look for a bad order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Each choice by lot.
    Random,
    /// Each call has a random priority; at a few random moments the one that continues falls to the lowest. Finds a bug
    /// of depth d with known probability (Burckhardt and others, ASPLOS 2010: probabilistic concurrency testing).
    Pct,
    /// All orders, as far as the number of runs goes.
    Exhaustive,
}

/// How many choices a run is thought to have, for where PCT changes priorities.
const PCT_CHOICES: u64 = 60;

/// How many times PCT changes priorities.
const PCT_CHANGES: usize = 3;

/// Chooses, in one run after another.
#[derive(Debug)]
pub struct Strategy {
    mode: Mode,
    random: Random,
    step: u64,
    priorities: Vec<u64>,
    changes: Vec<u64>,
    /// Exhaustive: how many there were to choose from and which was chosen, for each choice of this run.
    path: Vec<(usize, usize)>,
    runs: u64,
}

impl Strategy {
    /// A strategy that chooses the same for the same seed.
    pub fn new(mode: Mode, seed: u64) -> Self {
        let random = Random::new(seed);
        Self { mode, random, step: 0, priorities: Vec::new(), changes: Vec::new(), path: Vec::new(), runs: 0 }
    }

    /// Gets ready for the next run; false if there is none that was not seen before.
    pub(crate) fn next_run(&mut self, calls: usize) -> bool {
        self.step = 0;
        self.runs += 1;
        self.priorities = (0..calls).map(|_| self.random.next() | 1 << 63).collect();
        self.changes = (0..PCT_CHANGES).map(|_| self.random.next() % PCT_CHOICES).collect();
        if self.mode != Mode::Exhaustive || self.runs == 1 {
            return true;
        }
        while let Some((of, chosen)) = self.path.pop() {
            if chosen + 1 < of {
                self.path.push((of, chosen + 1));
                return true;
            }
        }
        false
    }

    /// Chooses one of `able`, which is not empty.
    pub(crate) fn choose(&mut self, able: &[usize]) -> usize {
        let step = self.step;
        self.step += 1;
        match self.mode {
            Mode::Random => able[(self.random.next() % able.len() as u64) as usize],
            Mode::Pct => {
                let first = |priorities: &[u64]| able.iter().copied().max_by_key(|call| priorities[*call]);
                if let (true, Some(call)) = (self.changes.contains(&step), first(&self.priorities)) {
                    self.priorities[call] = PCT_CHOICES.saturating_sub(step);
                }
                first(&self.priorities).unwrap_or(able[0])
            }
            Mode::Exhaustive => {
                if step as usize == self.path.len() {
                    self.path.push((able.len(), 0));
                }
                able[self.path[step as usize].1]
            }
        }
    }
}
