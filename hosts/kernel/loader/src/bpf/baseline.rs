//! The plain BPF FIFOs, to compare with.

use std::mem::MaybeUninit;

use libbpf_rs::{
    Link, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};

use super::{
    session::{before_loading, bpf_error},
    skel::baseline::{BaselineSkel, BaselineSkelBuilder},
};
use crate::{config::Queues, error::Result, sysfs};

/// A plain BPF FIFO in the kernel, until it is dropped.
pub struct Baseline {
    queues: Queues,
    _link: Link,
    _skel: BaselineSkel<'static>,
}

impl Baseline {
    /// Puts it into the kernel.
    pub fn start(queues: Queues) -> Result<Self> {
        before_loading()?;
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = BaselineSkelBuilder::default().open(object).map_err(|error| bpf_error("open", &error))?;
        if let Some(constants) = &mut open.maps.rodata_data {
            constants.is_shared = queues == Queues::Shared;
            constants.is_local = queues == Queues::Local;
        }
        let ops = open.struct_ops.baseline_ops_mut();
        for (place, byte) in ops.name.iter_mut().zip(queues.name().bytes().chain([0])) {
            *place = byte as _;
        }
        let mut skel = open.load().map_err(|error| bpf_error("load", &error))?;
        let link = skel.maps.baseline_ops.attach_struct_ops().map_err(|error| bpf_error("attach", &error))?;
        Ok(Self { queues, _link: link, _skel: skel })
    }

    /// Whether the kernel still uses it.
    pub fn is_running(&self) -> bool {
        sysfs::scheduler().as_deref() == Some(self.queues.name())
    }
}
