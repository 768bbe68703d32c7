//! Reads what the kernel's CPUs write down of the policy's calls.
//!
//! Each CPU writes into a ring of its own, over what is old, and never waits for a reader. So a reader looks how far the CPU
//! is before it copies and again afterwards, and what may have been overwritten meanwhile counts as missed.

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering::Acquire, fence},
};

use ekiden_recording::Record;
use memmap2::{Mmap, MmapOptions};

use crate::{
    control::{Control, Status},
    error::{Context, LoadError, Result},
};

/// Bytes from a CPU's count to its ring: `EKIDEN_TAPE_PAGE`.
const PAGE: usize = 4096;

/// Records beyond the count that a CPU may be writing.
const UNFINISHED: u64 = 8;

/// The rings of all CPUs, mapped. They stay readable when the policy is gone.
#[derive(Debug)]
pub struct Tape {
    map: Mmap,
    /// Records of a ring.
    records: u64,
    /// For each CPU, the first record that was not taken yet.
    next: Vec<u64>,
    copy: Vec<Record>,
    lost: u64,
}

impl Tape {
    /// The rings of the policy that runs, from the oldest record that is there.
    ///
    /// # Errors
    /// Without permission, and if no policy runs or none is recorded.
    pub fn open(control: &Control) -> Result<Self> {
        let status = Status::read()?.unwrap_or_default();
        if status.tape_records == 0 {
            return Err(LoadError::Other(
                "no calls are recorded: no policy runs, or it was started without a flight recorder".into(),
            ));
        }
        let len = status.tape_cpus as usize * (PAGE + status.tape_records as usize * size_of::<Record>());
        // SAFETY: the device maps memory of the kernel's, of this size, that is never cut short. It changes under our
        // hands: it is only read through pointers, and what is torn is thrown away.
        let map =
            unsafe { MmapOptions::new().len(len).map(control.file()) }.context("cannot map the flight recorder")?;
        let next = vec![0; status.tape_cpus as usize];
        Ok(Self { map, records: status.tape_records, next, copy: Vec::new(), lost: 0 })
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
    /// That of `take`.
    pub fn drain<E>(
        &mut self,
        mut take: impl FnMut(u32, u64, &[Record]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for cpu in 0..self.next.len() {
            let head = self.head(cpu);
            // The beginning of the ring's life is not overwritten by what is being written.
            let first = self.next[cpu].max(self.oldest(head));
            self.copy_out(cpu, first, head);
            fence(Acquire);
            let whole = first.max(self.oldest(self.head(cpu))).min(head);
            let records = &self.copy[(whole - first) as usize..];
            self.lost += whole - self.next[cpu];
            self.next[cpu] = head;
            if !records.is_empty() {
                take(cpu as u32, whole, records)?;
            }
        }
        Ok(())
    }

    /// The oldest record that nobody is writing over when a CPU has written `head`.
    fn oldest(&self, head: u64) -> u64 {
        (head + UNFINISHED).saturating_sub(self.records)
    }

    fn place(&self, cpu: usize) -> *const u8 {
        let stride = PAGE + self.records as usize * size_of::<Record>();
        // SAFETY: the map is as long as all CPUs' places.
        unsafe { self.map.as_ptr().add(cpu * stride) }
    }

    fn head(&self, cpu: usize) -> u64 {
        // SAFETY: the count is the first word of a page, and the kernel only ever stores whole words there.
        unsafe { &*self.place(cpu).cast::<AtomicU64>() }.load(Acquire)
    }

    fn copy_out(&mut self, cpu: usize, first: u64, head: u64) {
        self.copy.clear();
        // SAFETY: the ring begins a page after the place, and has that many records.
        let ring = unsafe { self.place(cpu).add(PAGE) }.cast::<Record>();
        for at in first..head {
            // SAFETY: within the ring; aligned, because the map and the page are. Any bytes are a record.
            self.copy.push(unsafe { ptr::read_volatile(ring.add((at % self.records) as usize)) });
        }
    }
}
