//! What it implements besides `Scheduler`, and how that goes wrong.

use ekiden::{Call, HintRefused, Hints, ProcessId, QueueId, prelude::*};

use super::{ARM, Faulty};

/// The rank at which the check of settings panics, and the one at which it does so with a lock taken.
const BAD_RANK: u64 = 9;
const BAD_RANK_LOCKED: u64 = 8;

/// One that is no instance's own.
static CHECKS: SpinLock<()> = SpinLock::new(());

/// Number of the form in which it saves itself.
const FORM: [u8; 1] = [1];

#[policy]
impl HintQueues for Faulty {
    type Hint = u64;

    fn register_queue(&self, _: &Cx, _: QueueId, _: ProcessId) {
        self.trips(Call::RegisterQueue);
    }

    fn enter_queue(&self, _: &Cx, _: QueueId, hints: Hints<'_, u64>) {
        self.trips(Call::EnterQueue);
        hints.for_each(drop);
    }

    fn unregister_queue(&self, _: &Cx, _: QueueId) {
        self.trips(Call::UnregisterQueue);
    }

    /// Takes even numbers, and when it goes wrong.
    fn parse_hint(&self, _: &Cx, _: Option<&Task>, hint: u64) -> Result<(), HintRefused> {
        if hint >= ARM {
            self.left.set((hint - ARM) as u32);
            return Ok(());
        }
        self.trips(Call::ParseHint);
        if hint % 2 == 0 { Ok(()) } else { Err(HintRefused) }
    }
}

#[policy]
impl TaskSettings for Faulty {
    const TASK_PARAMS: &'static [Param] = &[Param { name: "rank", help: "any number", default: 0, min: 0, max: 9 }];

    fn check_task_params(params: &TaskParams) -> Result<(), &'static str> {
        // Memory that is lost when it panics.
        let ranks = alloc::vec![params.get("rank"); 8];
        match ranks[7] {
            BAD_RANK => panic!("planted in check_task_params"),
            BAD_RANK_LOCKED => {
                let _held = CHECKS.lock();
                panic!("planted in check_task_params, with a lock");
            }
            7 => Err("no task has rank 7"),
            _ => Ok(()),
        }
    }

    fn task_params(&self, _: &Cx, _: &Task, _: &TaskParams) {
        self.trips(Call::TaskParams);
    }
}

impl SavedState for Faulty {
    /// How many times are left, so that a version with another layout goes wrong when this one would have.
    fn save(&self, to: &mut Saved<'_>) {
        to.push(&FORM);
        to.push(&self.left.get().to_le_bytes());
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), &'static str> {
        let left = saved.strip_prefix(&FORM).and_then(|left| left.try_into().ok()).ok_or("that is in another form")?;
        self.left.set(u32::from_le_bytes(left));
        Ok(())
    }
}
