//! The rings that the CPUs write into for `hosts/kernel/bpf/record.bpf.c`, mapped: what is in them is read in the order of its times,
//! without a call into the kernel.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    ptr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use libbpf_rs::MapCore;
use memmap2::{MmapOptions, MmapRaw};

use crate::{
    error::{Context, Result},
    recorded::Raw,
};

/// `struct ring` there without its records: the fields that count, each at the beginning of a line of the cache.
#[repr(C)]
struct Ring {
    head: AtomicU64,
    lost: AtomicU64,
    _pad: [u64; 6],
    tail: AtomicU64,
    _pad2: [u64; 7],
}

/// The rings of all CPUs.
pub(crate) struct Rings {
    map: MmapRaw,
    /// Bytes from one ring to the next.
    stride: usize,
    /// Records of a ring, a power of two.
    records: u64,
    /// For each CPU, the first record that was not taken yet.
    next: Vec<u64>,
}

/// How many records, a power of two, a ring of this many bytes has, and how many bytes it takes.
pub(crate) fn size(bytes: usize) -> (u64, usize) {
    let records = (bytes / size_of::<Raw>()).max(64);
    let records = 1 << records.ilog2();
    (records as u64, size_of::<Ring>() + records * size_of::<Raw>())
}

impl Rings {
    /// Maps a map of BPF that has a ring of this [`size`] for each CPU.
    pub(crate) fn map(map: &impl MapCore, nr_cpus: u32, records: u64, stride: usize) -> Result<Self> {
        let len = nr_cpus as usize * stride;
        let map = MmapOptions::new().len(len).map_raw(&map.as_fd()).context("cannot map the rings of the recorder")?;
        Ok(Self { map, stride, records, next: vec![0; nr_cpus as usize] })
    }

    /// Records that there was no room for.
    pub(crate) fn lost(&self) -> u64 {
        (0..self.next.len()).map(|cpu| self.ring(cpu).lost.load(Ordering::Relaxed)).sum()
    }

    /// Takes what was written before `until_ns`, all CPUs together in the order of its times.
    pub(crate) fn take(&mut self, until_ns: u64, sink: &mut impl FnMut(Raw)) {
        let cpus = 0..self.next.len();
        let mut first: BinaryHeap<Reverse<(u64, usize)>> =
            cpus.filter_map(|cpu| Some(Reverse((self.next(cpu, until_ns)?.0, cpu)))).collect();
        while let Some(Reverse((_, cpu))) = first.pop() {
            // As long as no other CPU was earlier.
            let limit_ns = first.peek().map_or(until_ns, |Reverse((time_ns, _))| *time_ns);
            while let Some((time_ns, place)) = self.next(cpu, until_ns) {
                if time_ns > limit_ns {
                    first.push(Reverse((time_ns, cpu)));
                    break;
                }
                self.next[cpu] += 1;
                sink(take_out(place));
            }
            self.ring(cpu).tail.store(self.next[cpu], Ordering::Release);
        }
    }

    /// The next record of a CPU, if there is one and it was before `until_ns`: when it was written, and where.
    #[inline]
    fn next(&self, cpu: usize, until_ns: u64) -> Option<(u64, *mut Raw)> {
        let place = self.place(cpu);
        if what(place).load(Ordering::Acquire) == 0 {
            return None;
        }
        // SAFETY: within the map, see `place`, and whole, as its last field says; the kernel does not change it any more.
        let time_ns = unsafe { ptr::read_volatile(&raw const (*place).time_ns) };
        (time_ns < until_ns).then_some((time_ns, place))
    }

    /// Where the next record of a CPU is, or will be.
    #[inline]
    fn place(&self, cpu: usize) -> *mut Raw {
        let at = size_of::<Ring>() + (self.next[cpu] & (self.records - 1)) as usize * size_of::<Raw>();
        // SAFETY: the map has a stride for each CPU, which is as long as a ring with all its records.
        unsafe { self.map.as_mut_ptr().add(cpu * self.stride + at) }.cast()
    }

    fn ring(&self, cpu: usize) -> &Ring {
        // SAFETY: the map has a stride for each CPU, which begins with its ring; aligned, because the map and the stride are. All
        // fields that are used are atomic.
        unsafe { &*self.map.as_mut_ptr().add(cpu * self.stride).cast() }
    }
}

#[inline]
fn what<'a>(place: *mut Raw) -> &'a AtomicU32 {
    // SAFETY: a place of a map that outlives the use of this, aligned as `place` says.
    unsafe { &*(&raw mut (*place).what).cast() }
}

/// Takes a record from where [`Rings::next`] found it.
#[inline]
fn take_out(place: *mut Raw) -> Raw {
    // The kernel may still make another one of it in a single step.
    let what = what(place).swap(0, Ordering::AcqRel);
    // SAFETY: within the map and whole, as `next` has found it; the place is not written again before `tail` says that it was taken.
    Raw { what, ..unsafe { ptr::read_volatile(place) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings in memory without a kernel.
    fn rings(nr_cpus: usize) -> Rings {
        let (records, stride) = size(64 * size_of::<Raw>());
        let map = MmapOptions::new().len(nr_cpus * stride).map_anon().unwrap().into();
        Rings { map, stride, records, next: vec![0; nr_cpus] }
    }

    /// Writes a record as the kernel does.
    fn write(rings: &Rings, cpu: usize, time_ns: u64, what: u32) {
        let what = if what == 0 { 0 } else { what | (cpu as u32) << 16 };
        let ring = rings.ring(cpu);
        let number = ring.head.fetch_add(1, Ordering::Relaxed);
        let at = size_of::<Ring>() + (number % rings.records) as usize * size_of::<Raw>();
        // SAFETY: within the stride of the CPU, as the number is taken modulo `records`; nothing else writes there.
        unsafe {
            rings.map.as_mut_ptr().add(cpu * rings.stride + at).cast::<Raw>().write(Raw {
                time_ns,
                value: 0,
                pid: 0,
                what,
            })
        };
    }

    fn taken(rings: &mut Rings, until_ns: u64) -> Vec<(u64, u32)> {
        let mut taken = Vec::new();
        rings.take(until_ns, &mut |raw| taken.push((raw.time_ns, raw.what >> 16)));
        taken
    }

    #[test]
    fn records_of_all_cpus_come_in_the_order_of_their_times_up_to_a_moment() {
        let mut rings = rings(3);
        for (cpu, time_ns) in [(0, 1), (0, 4), (0, 9), (2, 2), (2, 3), (2, 5)] {
            write(&rings, cpu, time_ns, 1);
        }
        assert_eq!(taken(&mut rings, 5), [(1, 0), (2, 2), (3, 2), (4, 0)]);
        write(&rings, 1, 6, 1);
        assert_eq!(taken(&mut rings, 100), [(5, 2), (6, 1), (9, 0)]);
        assert_eq!(taken(&mut rings, 100), []);
    }

    #[test]
    fn a_record_that_is_not_whole_holds_up_only_its_cpu() {
        let mut rings = rings(2);
        for (cpu, time_ns, what) in [(0, 1, 1), (0, 2, 0), (0, 3, 1), (1, 4, 1)] {
            write(&rings, cpu, time_ns, what);
        }
        assert_eq!(taken(&mut rings, 100), [(1, 0), (4, 1)]);
    }

    #[test]
    fn rings_go_round() {
        let mut rings = rings(1);
        for round in 0..10 {
            let times: Vec<u64> = (round * 50..(round + 1) * 50).collect();
            times.iter().for_each(|time_ns| write(&rings, 0, *time_ns, 1));
            assert_eq!(taken(&mut rings, u64::MAX).into_iter().map(|(time_ns, _)| time_ns).collect::<Vec<_>>(), times);
            assert_eq!(rings.ring(0).tail.load(Ordering::Relaxed), (round + 1) * 50);
        }
    }
}
