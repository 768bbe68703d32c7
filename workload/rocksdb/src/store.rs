//! A RocksDB in memory, whose content is known: each answer can be checked.

use std::path::Path;

use anyhow::{Context, Result};
use ekiden_workload::random::Random;
use rocksdb::{DB, DBCompressionType, Env, Options, WriteBatch, WriteOptions};

/// Words of a value.
const WORDS: usize = 8;

type Value = [u8; 8 * WORDS];

/// The database.
pub(crate) struct Store {
    db: DB,
    keys: u64,
}

impl Store {
    /// One with the keys from 0 to `keys` − 1, all of them written to tables in memory.
    pub(crate) fn new(keys: u64) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_env(&Env::mem_env().context("RocksDB has no memory for files")?);
        options.set_compression_type(DBCompressionType::None);
        // Nothing runs in the background while it is measured.
        options.set_disable_auto_compactions(true);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        let db = DB::open(&options, Path::new("/ekiden")).context("RocksDB cannot make a database in memory")?;
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        let mut batch = WriteBatch::default();
        (0..keys).for_each(|key| batch.put(key.to_be_bytes(), value(key)));
        db.write_opt(batch, &write).context("RocksDB cannot write")?;
        db.flush().context("RocksDB cannot write its tables")?;
        Ok(Self { db, keys })
    }

    /// Reads one key, which `number` chooses. Whether the value is right.
    pub(crate) fn get(&self, number: u64) -> bool {
        let key = number % self.keys;
        matches!(self.db.get_pinned(key.to_be_bytes()), Ok(Some(found)) if *found == value(key))
    }

    /// Reads `length` keys from one on that `number` chooses, or up to the last. Whether all are there and no others, with their values.
    pub(crate) fn range(&self, number: u64, length: u64) -> bool {
        let first = number % self.keys;
        let mut found = self.db.raw_iterator();
        found.seek(first.to_be_bytes());
        for key in first..self.keys.min(first + length) {
            if found.item() != Some((&key.to_be_bytes()[..], &value(key)[..])) {
                return false;
            }
            found.next();
        }
        found.status().is_ok()
    }
}

/// The value of a key.
fn value(key: u64) -> Value {
    let mut random = Random::new(key);
    let mut value = [0; 8 * WORDS];
    value.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_value_and_ranges_end_with_the_last() {
        let store = Store::new(1_000).unwrap();
        assert!((0..2_000).all(|number| store.get(number)));
        assert!([0, 1, 500, 999].into_iter().all(|number| store.range(number, 600)));
    }

    #[test]
    fn a_wrong_value_and_a_missing_one_are_found() {
        let store = Store::new(1_000).unwrap();
        store.db.put(7_u64.to_be_bytes(), value(8)).unwrap();
        store.db.delete(500_u64.to_be_bytes()).unwrap();
        assert!(!store.get(7) && !store.get(500) && store.get(8));
        assert!(!store.range(0, 10) && !store.range(499, 2) && store.range(8, 492));
    }
}
