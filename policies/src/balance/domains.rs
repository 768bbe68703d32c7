//! Scheduling domains: which CPUs balance with which, and in which groups (papers/002, section 2.2.1 and figure 1).

use core::sync::atomic::AtomicU64;

use alloc::vec::Vec;

use ekiden::{CpuId, CpuMask, Layout, Topology};

/// How often a busy CPU balances, for each CPU of the domain: the larger it is, the more the search costs, and the more it
/// costs a task to move. The kernel's numbers, one millisecond and `busy_factor`.
const BUSY_INTERVAL_NS: u64 = 32_000_000;

/// One level of the hierarchy, as one CPU sees it.
#[derive(Debug, Layout)]
pub(crate) struct Domain {
    /// Groups whose loads are compared, and among which tasks move. Between nodes that are not all linked to each other they
    /// may overlap.
    pub(crate) groups: Vec<CpuMask>,
    /// Whether it spans nodes.
    pub(crate) spans_nodes: bool,
    /// How often the CPU balances here while it is busy, and when it does so next.
    pub(crate) interval_ns: u64,
    pub(crate) next_ns: AtomicU64,
}

impl Domain {
    fn new(groups: Vec<CpuMask>, spans_nodes: bool) -> Self {
        let mut span = CpuMask::new();
        groups.iter().flat_map(CpuMask::iter).for_each(|cpu| span.set(cpu));
        let interval_ns = u64::from(span.count()) * BUSY_INTERVAL_NS;
        Self { groups, spans_nodes, interval_ns, next_ns: AtomicU64::new(0) }
    }
}

/// The domains of a CPU, from the smallest to the whole machine. `of_cpu_0` makes the groups between nodes as CPU 0 sees
/// them, which is the bug of papers/002, section 3.2.
pub(crate) fn of(topology: &Topology, cpu: CpuId, of_cpu_0: bool) -> Vec<Domain> {
    let mut domains = Vec::new();
    let within = |groups: Vec<CpuMask>| Domain::new(groups, false);
    let core = topology.smt_siblings(cpu);
    domains.push(within(core.iter().map(CpuMask::single).collect()));
    domains.push(within(parts(topology.cores(), topology.llc(cpu))));
    domains.push(within(parts(topology.llcs(), topology.node(cpu))));

    let node = topology.cpu(cpu).node;
    let seen_from = if of_cpu_0 { topology.cpu(0).node } else { node };
    let nodes = 0..topology.nodes().len() as u32;
    let mut distances: Vec<u32> = nodes.clone().map(|other| topology.distance(node, other)).collect();
    distances.sort_unstable();
    distances.dedup();
    for level in distances.windows(2) {
        let [inner, outer] = *level else { continue };
        // All nodes within a distance of one.
        let near = |from: u32, distance: u32| nodes.clone().filter(move |to| topology.distance(from, *to) <= distance);
        let cpus = |nodes: &mut dyn Iterator<Item = u32>| {
            let mut cpus = CpuMask::new();
            nodes.for_each(|node| topology.nodes()[node as usize].iter().for_each(|cpu| cpus.set(cpu)));
            cpus
        };
        // The first group is made around one node, the next around the first node that is in none yet, and so on.
        let span: Vec<u32> = near(node, outer).collect();
        let from = if span.contains(&seen_from) { seen_from } else { node };
        let mut groups = Vec::new();
        let mut covered = CpuMask::new();
        for start in core::iter::once(from).chain(span.iter().copied()) {
            if !topology.nodes()[start as usize].is_subset(&covered) {
                let group = cpus(&mut near(start, inner).filter(|node| span.contains(node)));
                group.iter().for_each(|cpu| covered.set(cpu));
                groups.push(group);
            }
        }
        domains.push(Domain::new(groups, true));
    }
    domains.retain(|domain| domain.groups.len() > 1);
    domains
}

/// The sets that are in `span`.
fn parts(sets: &[CpuMask], span: &CpuMask) -> Vec<CpuMask> {
    sets.iter().filter(|set| !set.is_empty() && set.is_subset(span)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// The nodes that a group of the paper's machine consists of.
    fn nodes(group: &CpuMask) -> Vec<u32> {
        let mut nodes: Vec<u32> = group.iter().map(|cpu| cpu / 8).collect();
        nodes.dedup();
        nodes
    }

    fn top(cpu: CpuId, of_cpu_0: bool) -> Vec<Vec<u32>> {
        let machine = ekiden_machine::preset("bulldozer64").unwrap();
        of(&machine, cpu, of_cpu_0).last().unwrap().groups.iter().map(nodes).collect()
    }

    #[test]
    fn the_groups_of_the_machine_are_those_of_the_paper() {
        // Section 3.2: node 0 and what is one hop away, then node 3 and what is one hop away from it.
        assert_eq!(top(0, true), [vec![0, 1, 2, 4, 6], vec![1, 2, 3, 4, 5, 7]]);
        assert_eq!(top(16, true), top(0, true), "with the bug every CPU has the groups of CPU 0");
        let fixed = top(16, false);
        assert!(fixed[0].contains(&2) && !fixed[0].contains(&1), "nodes 1 and 2 are two hops apart: {fixed:?}");
        assert!(fixed[1..].iter().any(|group| group.contains(&1)), "{fixed:?}");
    }

    #[test]
    fn the_hierarchy_goes_from_the_core_to_the_machine() {
        let machine = ekiden_machine::preset("bulldozer64").unwrap();
        let domains = of(&machine, 0, false);
        let shape: Vec<(usize, u32, bool)> =
            domains.iter().map(|domain| (domain.groups.len(), domain.groups[0].count(), domain.spans_nodes)).collect();
        // Two CPUs of a core; four cores of a node; five nodes within one hop; all.
        assert_eq!(shape, [(2, 1, false), (4, 2, false), (5, 8, true), (2, 40, true)]);
        assert!(of(&Topology::flat(1), 0, false).is_empty(), "one CPU balances with nobody");
    }

    #[test]
    fn every_domain_has_its_cpu_in_a_group_and_lies_in_the_next_one() {
        for name in ["bulldozer64", "xeon80", "laptop"] {
            let machine = ekiden_machine::preset(name).unwrap();
            for cpu in 0..machine.nr_cpus() {
                let mut inner = CpuMask::single(cpu);
                for domain in of(&machine, cpu, false) {
                    let mut span = CpuMask::new();
                    domain.groups.iter().flat_map(CpuMask::iter).for_each(|cpu| span.set(cpu));
                    assert!(inner.is_subset(&span) && domain.groups.iter().any(|group| group.contains(cpu)));
                    inner = span;
                }
                assert_eq!(inner.count(), machine.nr_cpus(), "{name}: CPU {cpu} does not see all");
            }
        }
    }
}
