//! The plain BPF FIFO, to compare with.

use std::mem::MaybeUninit;

use libbpf_rs::{
    Link, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    error::Result,
    session::{before_loading, bpf_error},
    skel::baseline::{BaselineSkel, BaselineSkelBuilder},
    sysfs,
};

/// The plain BPF FIFO in the kernel, until it is dropped.
pub struct Baseline {
    _link: Link,
    _skel: BaselineSkel<'static>,
}

impl Baseline {
    /// The name under which the kernel knows it.
    pub const NAME: &'static str = "ekiden_bpf_fifo";

    /// Puts it into the kernel.
    pub fn start() -> Result<Self> {
        before_loading()?;
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let open = BaselineSkelBuilder::default().open(object).map_err(|error| bpf_error("open", &error))?;
        let mut skel = open.load().map_err(|error| bpf_error("load", &error))?;
        let link = skel.maps.baseline_ops.attach_struct_ops().map_err(|error| bpf_error("attach", &error))?;
        Ok(Self { _link: link, _skel: skel })
    }

    /// Whether the kernel still uses it.
    pub fn is_running(&self) -> bool {
        sysfs::scheduler().as_deref() == Some(Self::NAME)
    }
}
