//! Reads what the kernel's CPUs write down of the policy's calls.
//!
//! Each CPU writes into a ring of its own, over what is old, and never waits for a reader. So a reader looks how far the CPU
//! is before it copies and again afterwards, and what may have been overwritten meanwhile counts as missed.

use std::{
    fs::File,
    ptr,
    sync::atomic::{AtomicU64, Ordering::Acquire, fence},
};

use ekiden_recording::Record;
use memmap2::{Mmap, MmapOptions};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use crate::{
    control::Control,
    error::{Context, LoadError, Result, needs_root},
    status::PolicyStatus,
};

/// Bytes from a CPU's count to its ring: `EKIDEN_CALL_LOG_PAGE`.
pub const CALL_LOG_PAGE: usize = 4096;

/// Where in the device the rings of the next policy slot begin: `EKIDEN_CALL_LOG_STRIDE`.
const STRIDE: u64 = 1 << 40;

/// Records beyond the count that a CPU may be writing.
const UNFINISHED: u64 = 8;

/// The counter that the times of calls are of, and the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// Ticks of the counter in a millisecond; 0 if times are of the clock already.
    khz: u32,
    /// Both, at one moment.
    ticks: u64,
    ns: u64,
}

impl Clocks {
    fn new(khz: u32) -> Self {
        // The pair that was read fastest is the one with the least between.
        let pair = |_| {
            let (before, ticks) = (now_ns(), ticks());
            let after = now_ns();
            (after - before, Self { khz, ticks, ns: before + (after - before) / 2 })
        };
        (0..16).map(pair).min_by_key(|(took, _)| *took).map_or(Self { khz, ticks: 0, ns: 0 }, |(_, clocks)| clocks)
    }

    /// A time of a record on the monotonic clock, in nanoseconds.
    fn to_ns(self, time: u64) -> u64 {
        if self.khz == 0 {
            return time;
        }
        // Records have the lower 56 bits.
        let since = (time.wrapping_sub(self.ticks) << 8) as i64 >> 8;
        let ns = i128::from(since) * 1_000_000 / i128::from(self.khz);
        (i128::from(self.ns) + ns).max(0) as u64
    }
}

/// The monotonic clock.
pub(crate) fn now_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| std::time::Duration::from(now).as_nanos() as u64)
}

/// The counter that `hosts/kernel/policy/src/here_x86_64.rs` reads.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: reads a counter that every processor of this architecture has.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// The bytes of a ring with its count, which has a page of its own in front.
pub fn len_of_ring(records: u64) -> usize {
    CALL_LOG_PAGE + records as usize * size_of::<Record>()
}

/// The rings of all CPUs, mapped. They stay readable when the policy is gone.
#[derive(Debug)]
pub struct CallLog {
    map: Mmap,
    /// Records of a ring.
    records: u64,
    /// For each CPU, the first record that was not taken yet.
    next: Vec<u64>,
    copy: Vec<Record>,
    lost: u64,
    clocks: Clocks,
}

impl CallLog {
    /// The rings of a policy that runs, from the oldest record that is there.
    ///
    /// # Errors
    /// Without permission, and if the policy is not recorded.
    pub fn open(policy: &PolicyStatus) -> Result<Self> {
        needs_root()?;
        if policy.call_log_records == 0 {
            return Err(LoadError::Other(
                "no calls are recorded: the policy was started without a flight recorder; start it without --flight-kib 0"
                    .into(),
            ));
        }
        // A descriptor of its own: the map keeps it open, and that of a session has to close when the session ends.
        let control = Control::open()?;
        let (offset, clocks) = (u64::from(policy.slot) * STRIDE, Clocks::new(policy.ticks_khz));
        // SAFETY: the device maps memory of the kernel's, of this size, that is never cut short.
        unsafe { Self::map(control.file(), offset, policy.call_log_cpus, policy.call_log_records, clocks) }
    }

    /// The ring of a policy that runs in a process, in memory that is [`len_of_ring`] bytes long and sealed against being made shorter; times are
    /// of the monotonic clock.
    ///
    /// # Errors
    /// When it is not such memory, or cannot be mapped.
    pub fn of_process(file: &File, records: u64) -> Result<Self> {
        let seals = fcntl(file, FcntlArg::F_GET_SEALS).map_err(std::io::Error::from);
        let seals = SealFlag::from_bits_truncate(seals.context("cannot look at the flight recorder")?);
        let len = file.metadata().context("cannot look at the flight recorder")?.len();
        if records == 0 || !seals.contains(SealFlag::F_SEAL_SHRINK) || len != len_of_ring(records) as u64 {
            return Err(LoadError::Other("that is no flight recorder of an agent".into()));
        }
        // SAFETY: the ring is as long as that, and its seal says that it is never cut short.
        unsafe { Self::map(file, 0, 1, records, Clocks::new(0)) }
    }

    /// # Safety
    /// From `offset` on there are as many rings in the file, and it is memory that is never cut short.
    unsafe fn map(file: &File, offset: u64, rings: u32, records: u64, clocks: Clocks) -> Result<Self> {
        let len = rings as usize * len_of_ring(records);
        // SAFETY: there are this many rings in the file, and it is never cut short. It changes under our hands: it is only read through pointers, and what is torn is
        // thrown away.
        let map = unsafe { MmapOptions::new().offset(offset).len(len).map(file) }
            .context("cannot map the flight recorder")?;
        Ok(Self { map, records, next: vec![0; rings as usize], copy: Vec::new(), lost: 0, clocks })
    }

    /// Forgets what there is: the next [`drain`](Self::drain) gives only what comes from here on.
    pub fn skip(&mut self) {
        for cpu in 0..self.next.len() {
            self.next[cpu] = self.head(cpu);
        }
    }

    /// How many records are waiting on the CPU that is nearest to overwriting some, as a part of its ring.
    pub fn fullest(&self) -> f64 {
        let waiting = self.next.iter().enumerate().map(|(cpu, next)| self.head(cpu).saturating_sub(*next));
        waiting.max().unwrap_or(0) as f64 / self.records as f64
    }

    /// Records that were overwritten before they were taken.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Takes what each CPU has written since the last time: `take` gets the CPU, the number of the first record counted from
    /// the beginning, and the records. Numbers that are left out are lost.
    ///
    /// # Errors
    /// Passes on the error of `take`.
    pub fn drain<E>(
        &mut self,
        mut take: impl FnMut(u32, u64, &[Record]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        // All at once, as nearly as can be: a call that waited for another CPU's is best not there without it.
        let heads: Vec<u64> = (0..self.next.len()).map(|cpu| self.head(cpu)).collect();
        for (cpu, head) in heads.into_iter().enumerate() {
            // The beginning of the ring's life is not overwritten by what is being written.
            let first = self.next[cpu].max(self.oldest(head));
            self.copy_out(cpu, first, head);
            fence(Acquire);
            let whole = first.max(self.oldest(self.head(cpu))).min(head);
            let (clocks, records) = (self.clocks, &mut self.copy[(whole - first) as usize..]);
            records.iter_mut().for_each(|record| record.time_mut(|time| clocks.to_ns(time)));
            self.lost += whole - self.next[cpu];
            self.next[cpu] = head;
            if !records.is_empty() {
                take(cpu as u32, whole, records)?;
            }
        }
        Ok(())
    }

    /// The oldest record that is not being overwritten when a CPU has written `head`.
    fn oldest(&self, head: u64) -> u64 {
        (head + UNFINISHED).saturating_sub(self.records)
    }

    fn place(&self, cpu: usize) -> *const u8 {
        // SAFETY: the map is as long as all CPUs' places.
        unsafe { self.map.as_ptr().add(cpu * len_of_ring(self.records)) }
    }

    fn head(&self, cpu: usize) -> u64 {
        // SAFETY: the count is the first word of a page, and the kernel only ever stores whole words there.
        unsafe { &*self.place(cpu).cast::<AtomicU64>() }.load(Acquire)
    }

    fn copy_out(&mut self, cpu: usize, first: u64, head: u64) {
        self.copy.clear();
        // SAFETY: the ring begins a page after the place, and has that many records.
        let ring = unsafe { self.place(cpu).add(CALL_LOG_PAGE) }.cast::<Record>();
        for at in first..head {
            // SAFETY: within the ring; aligned, because the map and the page are. Any bytes are a record.
            self.copy.push(unsafe { ptr::read_volatile(ring.add((at % self.records) as usize)) });
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    #[test]
    fn times_of_the_counter_become_times_of_the_clock() {
        let clocks = Clocks { khz: 2_000_000, ticks: 10_000, ns: 1_000_000 };
        assert_eq!([10_000, 12_000, 8_000].map(|time| clocks.to_ns(time)), [1_000_000, 1_001_000, 999_000]);
        // The counter of a machine that has run for long has more bits than a record.
        let late = Clocks { ticks: (3 << 56) + 5, ..clocks };
        assert_eq!([5, 2_005].map(|time| late.to_ns(time)), [1_000_000, 1_001_000]);
        assert_eq!(late.to_ns((1 << 56) - 1_995), 999_000, "from before the lower bits began anew");
        assert_eq!(Clocks { khz: 0, ..clocks }.to_ns(42), 42);
    }
    #[test]
    fn a_file_that_may_be_made_shorter_is_not_read_as_a_ring() {
        let memory = |records: u64| {
            let file: File = memfd_create(c"ring", MFdFlags::MFD_ALLOW_SEALING).unwrap().into();
            file.set_len(len_of_ring(records) as u64).unwrap();
            file
        };
        let sealed = memory(16);
        fcntl(&sealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(CallLog::of_process(&sealed, 16).is_ok());
        assert!(CallLog::of_process(&sealed, 32).is_err(), "longer than it is");
        assert!(CallLog::of_process(&memory(16), 16).is_err(), "not sealed");
        assert!(CallLog::of_process(&memory(0), 0).is_err(), "no ring");
        assert!(CallLog::of_process(&File::open("/dev/zero").unwrap(), 16).is_err(), "no memory");
    }
}
