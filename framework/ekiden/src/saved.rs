//! What a policy writes down for a version of itself that does not have its memory.

/// A policy that lets a version of itself go on whose [`State`](crate::Scheduler::State) has another layout, or that takes over in another
/// place: in an agent from one in a kernel, or the other way.
///
/// ```
/// use ekiden::{Layout, prelude::*};
///
/// /// Counts wake-ups, and continues counting in a version with another layout.
/// #[derive(Layout)]
/// struct Counting(Shared<u64>);
///
/// #[policy(SavedState)]
/// impl Scheduler for Counting {
///     fn new(_: &Env) -> Self { Self(Shared::new(0)) }
/// #     fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) { self.0.add(1); }
/// #     fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
/// }
///
/// impl SavedState for Counting {
///     fn save(&self, to: &mut Saved) {
///         // The form is number 1.
///         to.push(&[1]);
///         to.push(&self.0.get().to_le_bytes());
///     }
///
///     fn restore(&mut self, saved: &[u8]) -> Result<(), &'static str> {
///         match saved {
///             [1, count @ ..] => {
///                 let count = count.try_into().map_err(|_| "form 1 has eight bytes")?;
///                 self.0.set(u64::from_le_bytes(count));
///                 Ok(())
///             }
///             _ => Err("it knows form 1 only"),
///         }
///     }
/// }
///
/// let env = Env::new(Topology::flat(1), 16, &[], "").unwrap();
/// let (old, mut new, mut room) = (Counting::new(&env), Counting::new(&env), [0; 16]);
/// old.0.set(77);
/// let mut saved = Saved::new(&mut room);
/// old.save(&mut saved);
/// let len = saved.written().unwrap();
/// assert_eq!((new.restore(&room[..len]), new.0.get()), (Ok(()), 77));
/// assert!(new.restore(&[2]).is_err());
/// ```
pub trait SavedState: Sized {
    /// Writes down what a version whose [`State`](crate::Scheduler::State) has another layout, or that is in another place, is to go on with, in
    /// a form of the policy's own; begin with a number for the form. Called before such a version takes over, while other calls come. By default
    /// nothing is written; then a version of another layout is refused, and one in another place begins anew.
    fn save(&self, to: &mut Saved<'_>) {
        let _ = to;
    }

    /// Continues with what another version [saved](Self::save), after [`new`](crate::Scheduler::new) and before any other call. All tasks
    /// are new to it all the same: [`task_new`](crate::Scheduler::task_new) follows for each. An error, which is the default, refuses
    /// this version, and the old one stays.
    fn restore(&mut self, saved: &[u8]) -> Result<(), &'static str> {
        let _ = saved;
        Err("it does not continue from what another instance saved")
    }
}

/// Room for bytes, of a fixed size because the host takes it before.
///
/// ```
/// let mut room = [0; 16];
/// let mut saved = ekiden::Saved::new(&mut room);
/// saved.push(&[1]);
/// assert_eq!(saved.written(), Some(1));
/// ```
#[derive(Debug)]
pub struct Saved<'a> {
    room: &'a mut [u8],
    len: usize,
    fits: bool,
}

impl<'a> Saved<'a> {
    /// Nothing yet.
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { room, len: 0, fits: true }
    }

    /// Adds bytes. What does not fit is not there, and then nothing is handed over.
    pub fn push(&mut self, bytes: &[u8]) {
        match self.room.get_mut(self.len..self.len + bytes.len()).filter(|_| self.fits) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.fits = false,
        }
    }

    /// How many bytes there are; `None` if they did not fit.
    pub fn written(&self) -> Option<usize> {
        self.fits.then_some(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_makes_the_whole_worthless() {
        let mut room = [0; 8];
        let mut saved = Saved::new(&mut room);
        saved.push(&[1; 6]);
        assert_eq!(saved.written(), Some(6));
        saved.push(&[2; 3]);
        saved.push(&[3; 1]);
        assert_eq!(saved.written(), None);
        assert_eq!(room, [1, 1, 1, 1, 1, 1, 0, 0]);
    }
}
