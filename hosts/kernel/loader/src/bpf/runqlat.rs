//! Counts how long tasks wait for a CPU, under whichever scheduler (`hosts/kernel/bpf/runqlat.bpf.c`). Needs BTF and root, and
//! no sched_ext.

use std::mem::MaybeUninit;

use libbpf_rs::{
    MapCore, MapFlags, OpenObject,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use super::{
    look::{preflight, watch_error},
    skel::runqlat::{RunqlatSkel, RunqlatSkelBuilder},
};
use crate::{
    error::{LoadError, Result},
    waits::{Waits, Whom},
};

/// `NAME_LEN` there.
const NAME_LEN: usize = 16;

/// Waits are being counted, until this is dropped.
pub struct RunqLat {
    skel: RunqlatSkel<'static>,
}

impl RunqLat {
    /// Begins to count.
    ///
    /// # Errors
    /// Without privilege, without BTF, and where the kernel does not take the programs.
    pub fn start(whom: &Whom) -> Result<Self> {
        preflight()?;
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = RunqlatSkelBuilder::default().open(object).map_err(|error| watch_error("open", &error))?;
        let no_section = || LoadError::Other("the BPF object lacks a section; build Ekiden again".into());
        let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(no_section)?;
        constants.wanted_pid = whom.pid.unwrap_or_default();
        let name = whom.name.as_deref().unwrap_or_default().bytes().take(NAME_LEN - 1);
        for (to, byte) in constants.wanted_comm.iter_mut().zip(name) {
            *to = byte as _;
        }
        let mut skel = open.load().map_err(|error| watch_error("load", &error))?;
        skel.attach().map_err(|error| watch_error("attach", &error))?;
        Ok(Self { skel })
    }

    /// What has been counted so far.
    ///
    /// # Errors
    /// When the counts cannot be read.
    pub fn waits(&self) -> Result<Waits> {
        let of_cpus = |map: &dyn MapCore, key: u32| -> Result<Vec<u64>> {
            let values = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY);
            let values = values.map_err(|error| watch_error("read", &error))?.unwrap_or_default();
            Ok(values.iter().filter_map(|value| Some(u64::from_ne_bytes(*value.first_chunk()?))).collect())
        };
        let (buckets, extremes) = (&self.skel.maps.buckets, &self.skel.maps.extremes);
        let nr_buckets = buckets.max_entries();
        Ok(Waits {
            buckets: (0..nr_buckets).map(|key| Ok(of_cpus(buckets, key)?.iter().sum())).collect::<Result<_>>()?,
            max_ns: of_cpus(extremes, 0)?.into_iter().max().unwrap_or_default(),
            sum_ns: of_cpus(extremes, 1)?.iter().sum(),
        })
    }
}
