//! Queues of hints in the hands of the neighbour.

use std::{io, sync::atomic::Ordering::Relaxed};

use ekiden_user::{
    BytesQueue, Policy,
    hints::{Geometry, Side},
    types,
};

use super::Hostile;

impl Hostile {
    /// Opens a queue of hints to the default policy, if that has some, writes sense and nonsense into its memory, and has it heard or not.
    pub(super) fn hints(&mut self) -> io::Result<()> {
        let types = types(Policy::Default).map_err(io::Error::other)?;
        let side = |side: Side, power: u32| Side { records: 1 << power, ..side };
        let geometry =
            Geometry { up: side(types.up, self.rng.u32(0..13)), down: side(types.down, self.rng.u32(0..13)) };
        let mut queue = BytesQueue::open(Policy::Default, geometry).map_err(io::Error::other)?;
        let mut hint = vec![0; types.up.bytes as usize];
        for _ in 0..self.rng.u32(1..256) {
            self.rng.fill(&mut hint);
            // A full ring is refused.
            let _ = queue.send(&hint);
        }
        for _ in 0..self.rng.u32(0..8) {
            self.rng.choice(queue.words()).expect("it has words").store(self.rng.u64(..), Relaxed);
        }
        if self.rng.bool() {
            // The policy may have gone.
            let _ = queue.ring();
        }
        self.nap(1..2_000);
        Ok(())
    }
}
