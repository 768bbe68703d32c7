//! What the server keeps: values by their keys, in a limited memory.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use lru::LruCache;

use crate::protocol::How;

/// Parts with a lock each. What was used least recently is so among those of its part.
const SHARDS: usize = 16;

/// What an item takes besides its key and its value: its entry, and what the allocator adds, about.
const ITEM_BYTES: usize = 128;

/// Times up to this are from now on, others those of a calendar: a month, as in memcached.
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;

/// The value and flags that are stored under a key.
pub(crate) struct Item {
    pub(crate) value: Box<[u8]>,
    pub(crate) flags: u32,
    /// Different after each change.
    pub(crate) cas: u64,
    /// Seconds since 1970 at which it is gone; 0 for never.
    expires_s: u64,
}

/// The result of storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Became {
    Stored,
    /// There is one, or none, as was said.
    NotStored,
    /// It has changed since its number was read.
    Exists,
    NotFound,
    /// It is larger than all that its part may have.
    NoRoom,
}

/// The result of counting a number up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Now(u64),
    NotFound,
    NotANumber,
    NoRoom,
}

/// Counts of requests and items.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) sets: AtomicU64,
    pub(crate) stored: AtomicU64,
    pub(crate) evictions: AtomicU64,
}

pub(crate) struct Store {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    pub(crate) counts: Counts,
    cas: AtomicU64,
    /// When everything is to be dropped, in seconds since 1970; 0 for never.
    flush_s: AtomicU64,
    begin: Instant,
    began_s: u64,
    pub(crate) bytes_max: usize,
}

struct Shard {
    items: LruCache<Box<[u8]>, Item>,
    bytes: usize,
}

fn bytes_of(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ITEM_BYTES
}

impl Shard {
    fn remove(&mut self, key: &[u8]) -> bool {
        let found = self.items.pop(key);
        self.bytes -= found.as_ref().map_or(0, |item| bytes_of(key, &item.value));
        found.is_some()
    }

    /// The item, if it has not expired. An expired one is removed.
    fn live(&mut self, key: &[u8], now_s: u64) -> Option<&mut Item> {
        let is_over = self.items.peek(key).is_some_and(|item| item.expires_s != 0 && item.expires_s <= now_s);
        if is_over {
            self.remove(key);
        }
        self.items.get_mut(key)
    }

    /// Puts it in the place of what is there, and drops what was used least recently until there is room.
    fn put(&mut self, key: &[u8], item: Item, most: usize, evictions: &AtomicU64) -> bool {
        self.remove(key);
        let bytes = bytes_of(key, &item.value);
        if bytes > most {
            return false;
        }
        while self.bytes + bytes > most {
            let Some((key, item)) = self.items.pop_lru() else { break };
            self.bytes -= bytes_of(&key, &item.value);
            evictions.fetch_add(1, Relaxed);
        }
        self.bytes += bytes;
        self.items.put(key.into(), item);
        true
    }
}

impl Store {
    /// An empty one that may have so much memory.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let shard = || Mutex::new(Shard { items: LruCache::unbounded(), bytes: 0 });
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            counts: Counts::default(),
            cas: AtomicU64::new(0),
            flush_s: AtomicU64::new(0),
            begin: Instant::now(),
            began_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs()),
            bytes_max,
        }
    }

    /// Seconds since 1970, which do not jump when the clock is set.
    pub(crate) fn now_s(&self) -> u64 {
        self.began_s + self.uptime_s()
    }

    pub(crate) fn uptime_s(&self) -> u64 {
        self.begin.elapsed().as_secs()
    }

    /// When a client's time is, as [`Item::expires_s`] has it.
    fn when_s(&self, time: i64) -> u64 {
        match time {
            0 => 0,
            ..0 => 1,
            1..=RELATIVE_MAX_S => self.now_s() + time as u64,
            _ => time as u64,
        }
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        self.flush_if_due();
        let at = self.hasher.hash_one(key) as usize % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush_if_due(&self) {
        let flush_s = self.flush_s.load(Relaxed);
        if flush_s != 0 && flush_s <= self.now_s() && self.flush_s.swap(0, Relaxed) != 0 {
            self.clear();
        }
    }

    fn clear(&self) {
        for shard in &self.shards {
            let shard = &mut *shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.items.clear();
            shard.bytes = 0;
        }
    }

    fn shard_max(&self) -> usize {
        self.bytes_max / SHARDS
    }

    fn next_cas(&self) -> u64 {
        self.cas.fetch_add(1, Relaxed) + 1
    }

    /// Shows an item.
    pub(crate) fn get<T>(&self, key: &[u8], show: impl FnOnce(&Item) -> T) -> Option<T> {
        let now_s = self.now_s();
        let shown = self.shard(key).live(key, now_s).map(|item| show(item));
        let count = if shown.is_some() { &self.counts.hits } else { &self.counts.misses };
        count.fetch_add(1, Relaxed);
        shown
    }

    pub(crate) fn store(&self, how: How, key: &[u8], flags: u32, expires: i64, value: &[u8]) -> Became {
        self.counts.sets.fetch_add(1, Relaxed);
        let now_s = self.now_s();
        let shard = &mut *self.shard(key);
        let there = shard.live(key, now_s).map(|item| item.cas);
        match (how, there) {
            (How::Add, Some(_)) | (How::Replace, None) => return Became::NotStored,
            (How::Cas(_), None) => return Became::NotFound,
            (How::Cas(wanted), Some(cas)) if wanted != cas => return Became::Exists,
            _ => {}
        }
        let item = Item { value: value.into(), flags, cas: self.next_cas(), expires_s: self.when_s(expires) };
        if !shard.put(key, item, self.shard_max(), &self.counts.evictions) {
            return Became::NoRoom;
        }
        self.counts.stored.fetch_add(1, Relaxed);
        Became::Stored
    }

    pub(crate) fn delete(&self, key: &[u8]) -> bool {
        let now_s = self.now_s();
        let shard = &mut *self.shard(key);
        shard.live(key, now_s).is_some() && shard.remove(key)
    }

    /// Down it stops at 0, up it begins again there after 2^64 - 1.
    pub(crate) fn count(&self, key: &[u8], up: bool, by: u64) -> Counted {
        let now_s = self.now_s();
        let shard = &mut *self.shard(key);
        let Some(item) = shard.live(key, now_s) else { return Counted::NotFound };
        let text = std::str::from_utf8(&item.value).ok();
        let Some(number) = text.and_then(|text| text.parse::<u64>().ok()) else { return Counted::NotANumber };
        let number = if up { number.wrapping_add(by) } else { number.saturating_sub(by) };
        let item = Item {
            value: number.to_string().into_bytes().into(),
            cas: self.next_cas(),
            flags: item.flags,
            expires_s: item.expires_s,
        };
        let is_put = shard.put(key, item, self.shard_max(), &self.counts.evictions);
        if is_put { Counted::Now(number) } else { Counted::NoRoom }
    }

    pub(crate) fn touch(&self, key: &[u8], expires: i64) -> bool {
        let (now_s, expires_s) = (self.now_s(), self.when_s(expires));
        self.shard(key).live(key, now_s).map(|item| item.expires_s = expires_s).is_some()
    }

    /// Drops everything, now or after this many seconds.
    pub(crate) fn flush_all(&self, after_s: i64) {
        if after_s > 0 {
            self.flush_s.store(self.when_s(after_s), Relaxed);
        } else {
            self.clear();
        }
    }

    /// How many items there are, and the memory that counts.
    pub(crate) fn size(&self) -> (usize, usize) {
        let sizes = self.shards.iter().map(|shard| {
            let shard = &*shard.lock().unwrap_or_else(PoisonError::into_inner);
            (shard.items.len(), shard.bytes)
        });
        sizes.fold((0, 0), |(items, bytes), (more_items, more_bytes)| (items + more_items, bytes + more_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(store: &Store, key: &[u8], expires: i64, value: &[u8]) -> Became {
        store.store(How::Set, key, 0, expires, value)
    }

    fn value(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
        store.get(key, |item| item.value.to_vec())
    }

    #[test]
    fn what_is_over_is_not_there() {
        let store = Store::new(1 << 20);
        for (key, expires) in [(b"negative", -1), (b"calendar", RELATIVE_MAX_S + 1)] {
            assert_eq!(set(&store, key, expires, b"x"), Became::Stored);
            assert_eq!(value(&store, key), None, "{expires}");
        }
        assert_eq!(store.size(), (0, 0));
        set(&store, b"k", RELATIVE_MAX_S, b"x");
        assert_eq!(value(&store, b"k").as_deref(), Some(&b"x"[..]));
        assert!(store.touch(b"k", -1) && !store.touch(b"k", 0) && !store.delete(b"k"));
        set(&store, b"k", 0, b"x");
        store.flush_all(1_000);
        assert!(value(&store, b"k").is_some());
        store.flush_s.store(store.now_s(), Relaxed);
        assert_eq!(value(&store, b"k"), None);
    }

    #[test]
    fn what_was_used_least_recently_makes_room() {
        let store = Store::new(SHARDS * (2 * ITEM_BYTES + 2 * 100));
        // Three keys of the same part.
        let shard = |key: &String| store.hasher.hash_one(key.as_bytes()) as usize % SHARDS;
        let keys: Vec<String> =
            (0..).map(|number| format!("key{number}")).filter(|key| shard(key) == 3).take(3).collect();
        let [a, b, c] = [0, 1, 2].map(|at| keys[at].as_bytes());
        set(&store, a, 0, &[0; 80]);
        set(&store, b, 0, &[0; 80]);
        assert!(value(&store, a).is_some());
        assert_eq!(set(&store, c, 0, &[0; 80]), Became::Stored);
        assert_eq!([a, b, c].map(|key| value(&store, key).is_some()), [true, false, true]);
        assert_eq!(store.counts.evictions.load(Relaxed), 1);
        assert_eq!(set(&store, a, 0, &[0; 1000]), Became::NoRoom);
        assert_eq!(value(&store, a), None, "as in memcached, the old value is gone");
        assert_eq!(store.size(), (1, bytes_of(c, &[0; 80])));
    }

    #[test]
    fn memory_is_counted_exactly_whatever_happens() {
        let store = Store::new(SHARDS * 2_000);
        for round in 0..2_000_usize {
            let key = format!("key{}", round * 7 % 61);
            match round % 5 {
                0 | 1 => _ = set(&store, key.as_bytes(), 0, &vec![b'1'; round % 300]),
                2 => _ = store.count(key.as_bytes(), round % 2 == 0, 1),
                3 => _ = store.delete(key.as_bytes()),
                _ => _ = store.touch(key.as_bytes(), -1),
            }
        }
        for shard in &store.shards {
            let shard = shard.lock().unwrap();
            let bytes: usize = shard.items.iter().map(|(key, item)| bytes_of(key, &item.value)).sum();
            assert!(shard.bytes == bytes && bytes <= 2_000, "{bytes} and {}", shard.bytes);
        }
    }

    #[test]
    fn numbers_are_counted_as_in_memcached() {
        let store = Store::new(1 << 20);
        assert_eq!(store.count(b"k", true, 1), Counted::NotFound);
        set(&store, b"k", 0, b"five");
        assert_eq!(store.count(b"k", true, 1), Counted::NotANumber);
        set(&store, b"k", 0, b"5");
        assert_eq!(store.count(b"k", true, 5), Counted::Now(10));
        assert_eq!(store.count(b"k", false, 11), Counted::Now(0));
        set(&store, b"k", 0, u64::MAX.to_string().as_bytes());
        assert_eq!(store.count(b"k", true, 1), Counted::Now(0));
    }

    #[test]
    fn a_value_is_only_replaced_as_was_said() {
        let store = Store::new(1 << 20);
        let put = |how| store.store(how, b"k", 0, 0, b"x");
        assert_eq!(
            [put(How::Replace), put(How::Cas(1)), put(How::Add)],
            [Became::NotStored, Became::NotFound, Became::Stored]
        );
        let cas = store.get(b"k", |item| item.cas).unwrap();
        assert_eq!(
            [put(How::Add), put(How::Cas(cas + 1)), put(How::Cas(cas))],
            [Became::NotStored, Became::Exists, Became::Stored]
        );
        assert_ne!(store.get(b"k", |item| item.cas), Some(cas));
    }
}
