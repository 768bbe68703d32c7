//! Numbers by PID.

use rustc_hash::FxHashMap;

/// PIDs up to here are looked up in a vector; Linux has no greater ones.
const DENSE_PIDS: u32 = 1 << 22;

/// Stands for no number.
const NONE: u32 = u32::MAX;

/// Finds numbers by PID, several times faster than a hash table: PIDs are small and close together.
#[derive(Clone, Debug, Default)]
pub struct ByPid {
    dense: Vec<u32>,
    sparse: FxHashMap<u32, u32>,
}

impl ByPid {
    /// The number of a PID.
    #[inline]
    pub fn get(&self, pid: u32) -> Option<u32> {
        let found = if pid < DENSE_PIDS { self.dense.get(pid as usize) } else { self.sparse.get(&pid) };
        found.copied().filter(|number| *number != NONE)
    }

    /// Gives a PID a number, which is not [`u32::MAX`].
    pub fn set(&mut self, pid: u32, number: u32) {
        if pid >= DENSE_PIDS {
            self.sparse.insert(pid, number);
            return;
        }
        let place = pid as usize;
        if self.dense.len() <= place {
            self.dense.resize(place + 1, NONE);
        }
        self.dense[place] = number;
    }

    /// Takes a PID's number away, and returns it.
    pub fn remove(&mut self, pid: u32) -> Option<u32> {
        let number = self.get(pid)?;
        if pid < DENSE_PIDS {
            self.dense[pid as usize] = NONE;
        } else {
            self.sparse.remove(&pid);
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_until_it_is_taken_away() {
        let mut numbers = ByPid::default();
        for pid in [0, 7, DENSE_PIDS - 1, DENSE_PIDS, u32::MAX] {
            assert_eq!((numbers.get(pid), numbers.remove(pid)), (None, None), "{pid}");
            numbers.set(pid, 3);
            numbers.set(pid, 4);
            assert_eq!((numbers.get(pid), numbers.remove(pid), numbers.get(pid)), (Some(4), Some(4), None), "{pid}");
        }
    }
}
