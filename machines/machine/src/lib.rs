//! The topology of a machine, from its sysfs or from a description.
//!
//! [`Topology`] itself knows nothing of files, because it is also linked into the kernel.
#![forbid(unsafe_code)]

mod presets;
mod spec;
mod sysfs;

pub use presets::{PRESETS, preset};
pub use spec::{SpecError, parse};

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use ekiden::{Cpu, CpuId, CpuListError, CpuMask, FULL_CAPACITY, Topology, TopologyError};

use crate::sysfs::Dir;

/// Why the topology of a machine could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// A file is there and cannot be read.
    #[error("cannot read {}: {source}; check that you may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A file does not contain what the kernel puts there.
    #[error("{} contains {text:?}: check that this is a sysfs", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its contents.
        text: String,
    },
    /// A file contains no list of CPUs.
    #[error("cannot understand {}: {source}", path.display())]
    CpuList {
        /// The file.
        path: PathBuf,
        /// The mistake in the list.
        source: CpuListError,
    },
    /// There is no list of CPUs at all.
    #[error("{} lists no CPUs: mount sysfs there", path.display())]
    NoCpus {
        /// The directory.
        path: PathBuf,
    },
    /// A description makes no machine.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The files contradict one another.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// The topology of the machine whose sysfs is mounted on `root`, which is `/sys` for this one.
///
/// What the kernel does not tell is filled in: without caches (as in many virtual machines) the CPUs of a package, or
/// else of a node, share one; without nodes there is one; without capacities all CPUs are equal. A CPU that is
/// offline tells next to nothing, so read this while all are online if they are going to be.
pub fn read_sysfs(root: &Path) -> Result<Topology, MachineError> {
    let system = Dir::new(root.join("devices/system"));
    let cpu_dir = system.dir("cpu");
    let online = cpu_dir.cpus("online")?;
    let mut possible = cpu_dir.cpus("possible")?;
    if possible.is_none() {
        possible = cpu_dir.cpus("present")?;
    }
    let highest = possible.as_ref().or(online.as_ref()).and_then(|cpus| cpus.iter().last());
    let Some(highest) = highest else {
        return Err(MachineError::NoCpus { path: cpu_dir.path().into() });
    };
    let is_online = |cpu| online.as_ref().is_none_or(|online| online.contains(cpu));

    let nodes = Nodes::read(&system)?;
    let mut cores = Numbers::default();
    let mut llcs = Numbers::default();
    let mut cpus: Vec<Cpu> = Vec::new();
    for id in 0..=highest {
        let dir = cpu_dir.dir(&format!("cpu{id}"));
        let core = cores.number(core_of(id, &dir)?);
        // Some hypervisors say that the threads of one core have different caches: the first one's count.
        let (llc, node) = match cpus.iter().find(|other| other.core == core) {
            Some(sibling) => (sibling.llc, sibling.node),
            None => {
                let node = nodes.of(id, &dir);
                (llcs.number(llc_of(&dir, node)?), node)
            }
        };
        let capacity = dir.number("cpu_capacity")?.unwrap_or(FULL_CAPACITY).clamp(1, FULL_CAPACITY);
        cpus.push(Cpu { id, core, llc, node, capacity, online: is_online(id) });
    }
    Ok(Topology::new(cpus, nodes.distances)?)
}

/// What makes CPUs belong together, from the surest sign to a guess.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Together {
    /// The kernel lists them.
    Listed(Vec<u64>),
    /// They have the same package, and the same core there.
    SameCore { package: u32, core: u32 },
    /// They have the same package.
    SamePackage(u32),
    /// Nothing is known but the node.
    SameNode(u32),
    /// Nothing is known.
    Alone(CpuId),
}

impl Together {
    fn listed(cpus: CpuMask) -> Self {
        Self::Listed(cpus.as_words().to_vec())
    }
}

/// What the hardware threads of `cpu`'s core have in common.
fn core_of(cpu: CpuId, dir: &Dir) -> Result<Together, MachineError> {
    // Numbers of cores can repeat within a package of several dies, so the lists come first.
    for name in ["topology/core_cpus_list", "topology/thread_siblings_list"] {
        if let Some(siblings) = dir.cpus(name)? {
            return Ok(Together::listed(siblings));
        }
    }
    let package = dir.number("topology/physical_package_id")?;
    Ok(match (package, dir.number("topology/core_id")?) {
        (Some(package), Some(core)) => Together::SameCore { package, core },
        _ => Together::Alone(cpu),
    })
}

/// What the CPUs on the last-level cache of the CPU in `dir` have in common.
fn llc_of(dir: &Dir, node: u32) -> Result<Together, MachineError> {
    let mut last: Option<(u32, CpuMask)> = None;
    for cache in dir.numbered("cache", "index")?.into_values() {
        let (Some(level), Some(cpus)) = (cache.number("level")?, cache.cpus("shared_cpu_list")?) else { continue };
        if last.as_ref().is_none_or(|(highest, _)| level > *highest) {
            last = Some((level, cpus));
        }
    }
    if let Some((_, cpus)) = last {
        return Ok(Together::listed(cpus));
    }
    let package = dir.number("topology/physical_package_id")?;
    Ok(package.map_or(Together::SameNode(node), Together::SamePackage))
}

/// Gives out numbers from 0 in the order in which things are seen first.
#[derive(Default)]
struct Numbers(BTreeMap<Together, u32>);

impl Numbers {
    fn number(&mut self, thing: Together) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(thing).or_insert(next)
    }
}

/// The nodes. The kernel's numbers may have gaps; here they are counted through.
struct Nodes {
    /// Name and CPUs of each.
    nodes: Vec<(String, CpuMask)>,
    distances: Vec<u8>,
}

impl Nodes {
    fn read(system: &Dir) -> Result<Self, MachineError> {
        let mut nodes = Vec::new();
        let mut distances = Vec::new();
        for (number, dir) in system.numbered("node", "node")? {
            nodes.push((format!("node{number}"), dir.cpus("cpulist")?.unwrap_or_default()));
            distances.extend(dir.numbers::<u8>("distance")?);
        }
        let count = nodes.len().max(1);
        if distances.len() != count * count {
            // The kernel's own values where the firmware gives none.
            distances = (0..count * count).map(|index| if index / count == index % count { 10 } else { 20 }).collect();
        }
        Ok(Self { nodes, distances })
    }

    /// The node of `cpu`. The lists of the nodes leave out CPUs that are offline; those have only a link.
    fn of(&self, cpu: CpuId, dir: &Dir) -> u32 {
        let listed = self.nodes.iter().position(|(_, cpus)| cpus.contains(cpu));
        let linked = || self.nodes.iter().position(|(name, _)| dir.has(name));
        listed.or_else(linked).unwrap_or(0) as u32
    }
}
