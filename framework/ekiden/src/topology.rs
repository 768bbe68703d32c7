//! The machine as a policy sees it: cores, caches and memory nodes.

use alloc::vec::Vec;
use core::fmt;

use crate::{CpuId, CpuMask, cpumask::MAX_CPUS};

/// The capacity of the biggest CPUs of a machine, as in `/sys/devices/system/cpu/cpu0/cpu_capacity`.
///
/// ```
/// let topology = ekiden::Topology::flat(2);
/// assert!(topology.cpus().iter().all(|cpu| cpu.capacity == ekiden::FULL_CAPACITY));
/// ```
pub const FULL_CAPACITY: u32 = 1024;

/// The most nodes that Linux can be configured for (`CONFIG_NODES_SHIFT`).
const MAX_NODES: usize = 1024;
/// The distance of a node from itself, in the kernel's unit.
const LOCAL_DISTANCE: u8 = 10;
/// The distance of two nodes of one machine where nothing says otherwise.
const REMOTE_DISTANCE: u8 = 20;

/// One CPU and where it is. Cores, caches and nodes are numbered from 0, each kind across the whole machine.
///
/// ```
/// // One cache, two cores of two hardware threads: CPU 3 is the second thread of core 1.
/// let cpu = *ekiden::Topology::regular(1, 1, 2, 2).cpu(3);
/// assert_eq!((cpu.id, cpu.core, cpu.llc, cpu.node, cpu.online), (3, 1, 0, 0, true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: CpuId,
    /// The core; CPUs with the same one are hardware threads of it.
    pub core: u32,
    /// The last-level cache.
    pub llc: u32,
    /// The NUMA node.
    pub node: u32,
    /// How much it computes per second, 1024 for the biggest CPUs of the machine.
    pub capacity: u32,
    /// Whether it ran when the machine was looked at.
    pub online: bool,
}

/// CPUs, and what they share. Never changes: CPUs that come and go are in it all the time.
///
/// ```
/// use ekiden::{Topology, TopologyError};
///
/// // Two nodes, each of one cache, each of two cores of two hardware threads.
/// let topology = Topology::regular(2, 1, 2, 2);
/// assert_eq!((topology.nr_cpus(), topology.cpus().len(), topology.online().count()), (8, 8, 8));
/// assert_eq!((topology.cores().len(), topology.llcs().len(), topology.nodes().len()), (4, 2, 2));
/// assert_eq!(topology.smt_siblings(1).to_string(), "1,5");
/// assert_eq!((topology.llc(1).to_string(), topology.node(1).to_string()), ("0-1,4-5".into(), "0-1,4-5".into()));
/// assert_eq!(topology.nearest(1)[..3], [5, 4, 0]);
/// assert_eq!((topology.distance(0, 0), topology.distance(0, 1)), (10, 20));
/// assert_eq!(topology.cpu(6).node, 1);
///
/// assert_eq!(Topology::new(Topology::flat(3).cpus().to_vec(), vec![10; 3]), Err(TopologyError::Distances));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
    cores: Vec<CpuMask>,
    llcs: Vec<CpuMask>,
    nodes: Vec<CpuMask>,
    /// Distances from each node to each node, row by row.
    distances: Vec<u8>,
}

impl Topology {
    /// A machine of these CPUs. `distances` is the kernel's table between its nodes, row by row, 10 being local.
    ///
    /// CPUs, cores and caches must be numbered from 0 without gaps. A node may have no CPUs.
    pub fn new(mut cpus: Vec<Cpu>, distances: Vec<u8>) -> Result<Self, TopologyError> {
        let nr_cpus = cpus.len();
        if nr_cpus == 0 || nr_cpus > MAX_CPUS as usize {
            return Err(TopologyError::CpuCount(nr_cpus));
        }
        let nr_nodes = distances.len().isqrt();
        if nr_nodes * nr_nodes != distances.len() || nr_nodes > MAX_NODES || distances.contains(&0) {
            return Err(TopologyError::Distances);
        }
        cpus.sort_unstable_by_key(|cpu| cpu.id);
        for (cpu, id) in cpus.iter().zip(0..) {
            if cpu.id != id {
                return Err(TopologyError::CpuIds { cpu: id });
            }
            if cpu.core as usize >= nr_cpus || cpu.llc as usize >= nr_cpus || cpu.node as usize >= nr_nodes {
                return Err(TopologyError::Place { cpu: id });
            }
            if cpu.capacity == 0 || cpu.capacity > FULL_CAPACITY {
                return Err(TopologyError::Capacity { cpu: id, capacity: cpu.capacity });
            }
        }
        let cores = groups(&cpus, |cpu| cpu.core);
        let llcs = groups(&cpus, |cpu| cpu.llc);
        if cores.iter().chain(&llcs).any(CpuMask::is_empty) {
            return Err(TopologyError::Gap);
        }
        let mut nodes = groups(&cpus, |cpu| cpu.node);
        nodes.resize(nr_nodes, CpuMask::new());
        let topology = Self { cpus, cores, llcs, nodes, distances };
        topology.check_cores()?;
        Ok(topology)
    }

    /// A machine of `nr_cpus` equal CPUs that share one cache.
    ///
    /// # Panics
    ///
    /// If that is no CPU, or more than [`MAX_CPUS`].
    pub fn flat(nr_cpus: u32) -> Self {
        Self::regular(1, 1, nr_cpus, 1)
    }

    /// A machine of `nodes` nodes, each of `llcs` last-level caches, each of `cores` cores, each of `threads` hardware
    /// threads. CPUs are numbered as Linux does on most machines: the first thread of every core, then the second
    /// ones.
    ///
    /// # Panics
    ///
    /// If that is no CPU, or more than [`MAX_CPUS`].
    pub fn regular(nodes: u32, llcs: u32, cores: u32, threads: u32) -> Self {
        let counts = [nodes, llcs, cores, threads];
        let nr_cpus = counts.iter().try_fold(1, |product: u32, count| product.checked_mul(*count));
        let fits = nr_cpus.is_some_and(|nr_cpus| (1..=MAX_CPUS).contains(&nr_cpus));
        assert!(fits, "a machine has 1 to {MAX_CPUS} CPUs, and not {nodes} × {llcs} × {cores} × {threads}");
        let nr_cores = nodes * llcs * cores;
        let cpu = |id| {
            let core = id % nr_cores;
            let llc = core / cores;
            Cpu { id, core, llc, node: llc / llcs, capacity: FULL_CAPACITY, online: true }
        };
        let distance = |index| if index / nodes == index % nodes { LOCAL_DISTANCE } else { REMOTE_DISTANCE };
        let topology =
            Self::new((0..nr_cores * threads).map(cpu).collect(), (0..nodes * nodes).map(distance).collect());
        topology.expect("a regular machine is well formed")
    }

    /// How many CPUs the machine can have, offline ones included.
    pub fn nr_cpus(&self) -> CpuId {
        self.cpus.len() as CpuId
    }

    /// Where `cpu` is.
    ///
    /// # Panics
    ///
    /// This one and all that follow: if there is no such CPU.
    #[inline]
    pub fn cpu(&self, cpu: CpuId) -> &Cpu {
        &self.cpus[cpu as usize]
    }

    /// All CPUs, in the order of their numbers.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The CPUs that were online when the machine was looked at.
    pub fn online(&self) -> CpuMask {
        self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect()
    }

    /// The hardware threads of each core.
    pub fn cores(&self) -> &[CpuMask] {
        &self.cores
    }

    /// The CPUs of each last-level cache.
    pub fn llcs(&self) -> &[CpuMask] {
        &self.llcs
    }

    /// The CPUs of each node; a node may have none.
    pub fn nodes(&self) -> &[CpuMask] {
        &self.nodes
    }

    /// The hardware threads of `cpu`'s core, itself included.
    #[inline]
    pub fn smt_siblings(&self, cpu: CpuId) -> &CpuMask {
        &self.cores[self.cpu(cpu).core as usize]
    }

    /// The CPUs that share `cpu`'s last-level cache, itself included.
    #[inline]
    pub fn llc(&self, cpu: CpuId) -> &CpuMask {
        &self.llcs[self.cpu(cpu).llc as usize]
    }

    /// The CPUs on `cpu`'s node, itself included.
    #[inline]
    pub fn node(&self, cpu: CpuId) -> &CpuMask {
        &self.nodes[self.cpu(cpu).node as usize]
    }

    /// How far memory of node `to` is from the CPUs of node `from`; 10 is local.
    #[inline]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let nr_nodes = self.nodes.len();
        let (from, to) = (from as usize, to as usize);
        // Otherwise a wrong `to` would read another row.
        assert!(to < nr_nodes, "there is no node {to}: the machine has {nr_nodes}");
        u32::from(self.distances[from * nr_nodes + to])
    }

    /// All other CPUs, nearest first: the same core, the same cache, the same node, then by the distance of the node.
    /// Among equals they go on upwards from `cpu` and start again at 0, so that not all CPUs prefer the same ones.
    ///
    /// Sorts, so ask for it when the policy is made and keep the answer.
    pub fn nearest(&self, cpu: CpuId) -> Vec<CpuId> {
        let here = *self.cpu(cpu);
        let nr_cpus = self.nr_cpus();
        let mut others: Vec<CpuId> = (1..nr_cpus).map(|step| (cpu + step) % nr_cpus).collect();
        others.sort_by_key(|other| {
            let there = self.cpu(*other);
            (
                there.core != here.core,
                there.llc != here.llc,
                there.node != here.node,
                self.distance(here.node, there.node),
            )
        });
        others
    }

    /// Threads of one core share everything else too.
    fn check_cores(&self) -> Result<(), TopologyError> {
        for cpu in &self.cpus {
            let first = self.smt_siblings(cpu.id).first().map_or(cpu, |first| self.cpu(first));
            if (first.llc, first.node) != (cpu.llc, cpu.node) {
                return Err(TopologyError::SplitCore { core: cpu.core });
            }
        }
        Ok(())
    }
}

/// The CPUs that have the same number, by that number.
fn groups(cpus: &[Cpu], number: impl Fn(&Cpu) -> u32) -> Vec<CpuMask> {
    let mut groups = Vec::new();
    for cpu in cpus {
        let index = number(cpu) as usize;
        if index >= groups.len() {
            groups.resize(index + 1, CpuMask::new());
        }
        groups[index].set(cpu.id);
    }
    groups
}

// The form in which a topology crosses from user space into the kernel: version, number of CPUs, number of nodes; two words per CPU; and
// the distances, four to a word. Both are public for hosts, which are other crates; a policy is given its topology.
impl Topology {
    /// This topology as plain words, for [`from_words`](Self::from_words) on the other side.
    #[doc(hidden)]
    pub fn to_words(&self) -> Vec<u32> {
        let mut words =
            Vec::with_capacity(HEADER_WORDS + self.cpus.len() * CPU_WORDS + self.distances.len().div_ceil(4));
        words.extend([VERSION, self.cpus.len() as u32, self.nodes.len() as u32]);
        for cpu in &self.cpus {
            words.push(cpu.core | cpu.llc << 16);
            words.push(cpu.node | cpu.capacity << 16 | u32::from(cpu.online) << 31);
        }
        words.extend(self.distances.chunks(4).map(|chunk| {
            let mut bytes = [0; 4];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(bytes)
        }));
        words
    }

    /// The topology that these words describe. They may be anything: what is not well formed is an error.
    #[doc(hidden)]
    pub fn from_words(words: &[u32]) -> Result<Self, TopologyError> {
        let Some((&[version, nr_cpus, nr_nodes], rest)) = words.split_first_chunk::<HEADER_WORDS>() else {
            return Err(TopologyError::Length);
        };
        if version != VERSION {
            return Err(TopologyError::Version(version));
        }
        let nr_cpus = nr_cpus as usize;
        if nr_cpus > MAX_CPUS as usize {
            return Err(TopologyError::CpuCount(nr_cpus));
        }
        let nr_distances = u64::from(nr_nodes) * u64::from(nr_nodes);
        let expected = (nr_cpus * CPU_WORDS) as u64 + nr_distances.div_ceil(4);
        if rest.len() as u64 != expected {
            return Err(TopologyError::Length);
        }
        let (cpus, distances) = rest.split_at(nr_cpus * CPU_WORDS);
        let cpus = cpus.chunks_exact(CPU_WORDS).zip(0..).map(|(words, id)| Cpu {
            id,
            core: words[0] & 0xffff,
            llc: words[0] >> 16,
            node: words[1] & 0xffff,
            capacity: words[1] >> 16 & 0x7fff,
            online: words[1] >> 31 != 0,
        });
        let mut distances: Vec<u8> = distances.iter().flat_map(|word| word.to_le_bytes()).collect();
        distances.truncate(nr_distances as usize);
        Self::new(cpus.collect(), distances)
    }
}

/// Says which form the words have.
const VERSION: u32 = 1;
/// Version, CPUs, nodes.
const HEADER_WORDS: usize = 3;
/// Core and cache; node, capacity and whether it is online.
const CPU_WORDS: usize = 2;

/// Why something is no topology.
///
/// ```
/// use ekiden::{Cpu, Topology, TopologyError};
///
/// let cpu = Cpu { capacity: 2_000, ..*Topology::flat(1).cpu(0) };
/// let error = Topology::new(vec![cpu], vec![10]).unwrap_err();
/// assert_eq!(error, TopologyError::Capacity { cpu: 0, capacity: 2_000 });
/// assert_eq!(error.to_string(), "CPU 0 has capacity 2000: give it 1 to 1024");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// No CPU, or more than [`MAX_CPUS`].
    CpuCount(usize),
    /// The CPUs are not numbered from 0 without gaps: this one is missing, or there twice.
    CpuIds {
        /// The first number that is wrong.
        cpu: CpuId,
    },
    /// The number of a CPU's core or cache is not below the number of CPUs, or its node is not in the distance table.
    Place {
        /// The CPU.
        cpu: CpuId,
    },
    /// A capacity is not in 1…1024.
    Capacity {
        /// The CPU.
        cpu: CpuId,
        /// What it is said to be.
        capacity: u32,
    },
    /// Cores or caches are not numbered from 0 without gaps.
    Gap,
    /// Threads of one core are on different nodes or have different last-level caches.
    SplitCore {
        /// The core.
        core: u32,
    },
    /// The distances are not a square table of numbers from 1 to 255, or there are too many of them.
    Distances,
    /// The words are of another version.
    Version(u32),
    /// There are more or fewer words than they say themselves.
    Length,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CpuCount(count) => write!(f, "a machine of {count} CPUs: give it 1 to {MAX_CPUS}"),
            Self::CpuIds { cpu } => {
                write!(f, "CPU {cpu} is missing or there twice: number the CPUs from 0, without gaps")
            }
            Self::Place { cpu } => {
                write!(f, "CPU {cpu} has a core, cache or node that there cannot be: number each of them from 0")
            }
            Self::Capacity { cpu, capacity } => {
                write!(f, "CPU {cpu} has capacity {capacity}: give it 1 to {FULL_CAPACITY}")
            }
            Self::Gap => write!(f, "a core or cache has no CPU: number both from 0, without gaps"),
            Self::SplitCore { core } => {
                write!(f, "threads of core {core} differ in node or cache: give them the same, or separate cores")
            }
            Self::Distances => {
                write!(
                    f,
                    "the distances between nodes are not a square of numbers from 1 to 255: give one row for each node, \
                     {MAX_NODES} at most"
                )
            }
            Self::Version(version) => {
                write!(f, "a topology of version {version}, not {VERSION}: build both sides from the same Ekiden")
            }
            Self::Length => write!(f, "a topology was cut off or has words left over: send it whole"),
        }
    }
}

impl core::error::Error for TopologyError {}

#[cfg(test)]
mod tests {
    use alloc::{
        string::{String, ToString},
        vec,
        vec::Vec,
    };

    use proptest::prelude::*;

    use super::*;

    fn cpu(id: CpuId) -> Cpu {
        Cpu { id, core: id, llc: 0, node: 0, capacity: FULL_CAPACITY, online: true }
    }

    fn listed(mask: &CpuMask) -> String {
        mask.to_string()
    }

    /// Machines that are regular but for capacities, CPUs that are offline and distances.
    fn machines() -> impl Strategy<Value = Topology> {
        (1..4u32, 1..3u32, 1..4u32, 1..3u32).prop_flat_map(|(nodes, llcs, cores, threads)| {
            let regular = Topology::regular(nodes, llcs, cores, threads);
            let cpus = regular.cpus.len();
            let distances = prop::collection::vec(1..=u8::MAX, (nodes * nodes) as usize);
            let each = prop::collection::vec((1..=FULL_CAPACITY, any::<bool>()), cpus);
            (Just(regular.cpus), each, distances).prop_map(|(mut cpus, each, distances)| {
                for (cpu, (capacity, online)) in cpus.iter_mut().zip(each) {
                    (cpu.capacity, cpu.online) = (capacity, online);
                }
                Topology::new(cpus, distances).unwrap()
            })
        })
    }

    #[test]
    fn a_regular_machine_is_numbered_as_linux_does() {
        let machine = Topology::regular(2, 2, 2, 2);
        assert_eq!(machine.nr_cpus(), 16);
        assert_eq!(listed(machine.smt_siblings(1)), "1,9");
        assert_eq!(listed(machine.llc(1)), "0-1,8-9");
        assert_eq!(listed(machine.node(1)), "0-3,8-11");
        assert_eq!(listed(machine.node(4)), "4-7,12-15");
        assert_eq!((machine.distance(0, 0), machine.distance(0, 1)), (10, 20));
    }

    #[test]
    fn a_flat_machine_shares_one_cache_and_no_core() {
        let machine = Topology::flat(3);
        assert_eq!(listed(machine.smt_siblings(1)), "1");
        assert_eq!(listed(machine.llc(1)), "0-2");
        assert_eq!(machine.online(), CpuMask::first_n(3));
    }

    #[test]
    fn the_nearest_cpus_share_the_most() {
        let machine = Topology::regular(2, 2, 2, 2);
        assert_eq!(machine.nearest(1), [9, 8, 0, 2, 3, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]);
    }

    #[test]
    fn nearer_nodes_come_before_farther_ones() {
        let cpus = (0..3).map(|id| Cpu { llc: id, node: id, ..cpu(id) }).collect();
        let machine = Topology::new(cpus, vec![10, 30, 20, 30, 10, 20, 20, 20, 10]).unwrap();
        assert_eq!(machine.nearest(0), [2, 1]);
        assert_eq!(machine.nearest(1), [2, 0]);
    }

    #[test]
    fn a_cache_may_reach_across_nodes() {
        let cpus = (0..2).map(|id| Cpu { node: id, ..cpu(id) }).collect();
        let machine = Topology::new(cpus, vec![10, 12, 12, 10]).unwrap();
        assert_eq!(listed(machine.llc(0)), "0-1");
        assert_eq!(listed(machine.node(0)), "0");
    }

    #[test]
    fn a_node_may_have_no_cpus() {
        let machine = Topology::new(vec![cpu(0)], vec![10, 80, 80, 10]).unwrap();
        assert!(machine.nodes()[1].is_empty());
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        assert_eq!(Topology::new(vec![cpu(1), cpu(2), cpu(0)], vec![10]).unwrap(), Topology::flat(3));
    }

    #[test]
    fn what_is_no_machine_is_refused_with_the_reason() {
        let two = |change: fn(&mut Cpu)| {
            let mut second = cpu(1);
            change(&mut second);
            vec![cpu(0), second]
        };
        for (cpus, distances, error) in [
            (vec![], vec![10], TopologyError::CpuCount(0)),
            ((0..8193).map(cpu).collect(), vec![10], TopologyError::CpuCount(8193)),
            (two(|cpu| cpu.id = 0), vec![10], TopologyError::CpuIds { cpu: 1 }),
            (two(|cpu| cpu.id = 2), vec![10], TopologyError::CpuIds { cpu: 1 }),
            (two(|cpu| cpu.core = 2), vec![10], TopologyError::Place { cpu: 1 }),
            (two(|cpu| cpu.llc = 2), vec![10], TopologyError::Place { cpu: 1 }),
            (two(|cpu| cpu.node = 1), vec![10], TopologyError::Place { cpu: 1 }),
            (two(|_| {}), vec![], TopologyError::Place { cpu: 0 }),
            (two(|cpu| cpu.capacity = 0), vec![10], TopologyError::Capacity { cpu: 1, capacity: 0 }),
            (two(|cpu| cpu.capacity = 1025), vec![10], TopologyError::Capacity { cpu: 1, capacity: 1025 }),
            (two(|cpu| (cpu.core, cpu.llc) = (0, 1)), vec![10], TopologyError::SplitCore { core: 0 }),
            (vec![Cpu { core: 1, ..cpu(0) }, cpu(1)], vec![10], TopologyError::Gap),
            (vec![Cpu { llc: 1, ..cpu(0) }, Cpu { llc: 1, ..cpu(1) }], vec![10], TopologyError::Gap),
            (two(|_| {}), vec![10, 20], TopologyError::Distances),
            (two(|_| {}), vec![0], TopologyError::Distances),
            (two(|_| {}), vec![10; 1025 * 1025], TopologyError::Distances),
        ] {
            assert_eq!(Topology::new(cpus, distances), Err(error));
        }
    }

    #[test]
    fn words_of_another_version_are_refused() {
        let mut words = Topology::flat(2).to_words();
        words[0] += 1;
        assert_eq!(Topology::from_words(&words), Err(TopologyError::Version(words[0])));
    }

    #[test]
    fn a_topology_that_was_cut_off_is_refused() {
        let words = Topology::regular(3, 1, 1, 1).to_words();
        for length in 0..words.len() {
            assert_eq!(Topology::from_words(&words[..length]), Err(TopologyError::Length), "{length}");
        }
        let longer: Vec<u32> = words.iter().copied().chain([0]).collect();
        assert_eq!(Topology::from_words(&longer), Err(TopologyError::Length));
    }

    #[test]
    fn the_largest_machine_crosses() {
        let machine = Topology::regular(8, 8, 64, 2);
        assert_eq!(machine.nr_cpus(), MAX_CPUS);
        assert_eq!(Topology::from_words(&machine.to_words()), Ok(machine));
    }

    #[test]
    #[should_panic(expected = "a machine has 1 to 8192 CPUs")]
    fn a_regular_machine_of_no_cpus_is_refused() {
        Topology::regular(1, 0, 4, 1);
    }

    #[test]
    #[should_panic(expected = "a machine has 1 to 8192 CPUs")]
    fn a_regular_machine_whose_size_overflows_is_refused() {
        Topology::regular(1 << 16, 1 << 16, 1, 1);
    }

    /// Words that get past the checks of the header more often than arbitrary ones.
    fn nearly_words() -> impl Strategy<Value = Vec<u32>> {
        let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 0..4);
        (machines(), damage).prop_map(|(machine, damage)| {
            let mut words = machine.to_words();
            for (place, word) in damage {
                let place = place.index(words.len());
                // Small changes too, which may give another machine that is well formed.
                words[place] = if word % 2 == 0 { word } else { words[place] ^ 1 << (word % 32) };
            }
            words
        })
    }

    proptest! {
        #[test]
        fn a_topology_crosses_unchanged(machine in machines()) {
            prop_assert_eq!(Topology::from_words(&machine.to_words()), Ok(machine));
        }

        #[test]
        fn arbitrary_words_are_refused_or_well_formed(
            words in prop_oneof![prop::collection::vec(any::<u32>(), 0..40), nearly_words()],
        ) {
            if let Ok(machine) = Topology::from_words(&words) {
                prop_assert_eq!(Topology::new(machine.cpus.clone(), machine.distances.clone()), Ok(machine.clone()));
                for cpu in 0..machine.nr_cpus() {
                    prop_assert!(machine.smt_siblings(cpu).is_subset(machine.llc(cpu)));
                    prop_assert!(machine.smt_siblings(cpu).is_subset(machine.node(cpu)));
                    prop_assert!(machine.smt_siblings(cpu).contains(cpu));
                }
            }
        }

        #[test]
        fn every_other_cpu_is_near_in_some_order(machine in machines()) {
            for cpu in 0..machine.nr_cpus() {
                let nearest = machine.nearest(cpu);
                prop_assert_eq!(nearest.len() as u32, machine.nr_cpus() - 1);
                let mut all: CpuMask = nearest.iter().copied().collect();
                prop_assert!(!all.contains(cpu));
                all.set(cpu);
                prop_assert_eq!(all, CpuMask::first_n(machine.nr_cpus()));
                let siblings = machine.smt_siblings(cpu).count() as usize - 1;
                prop_assert!(nearest[..siblings].iter().all(|near| machine.smt_siblings(cpu).contains(*near)));
            }
        }
    }
}
