//! Scheduling domains: which CPUs balance with which, and in which groups (papers/002, section 2.2.1 and figure 1).

use alloc::vec::Vec;

use ekiden::{CpuId, CpuMask, Topology};

/// One level of the hierarchy, as one CPU sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Domain {
    /// Whose loads are compared, and among which tasks move. Between nodes that are not all linked to each other they
    /// may overlap.
    pub(super) groups: Vec<CpuMask>,
    /// Whether it spans nodes.
    pub(super) spans_nodes: bool,
}

/// The domains of a CPU, from the smallest to the whole machine. `of_cpu_0` makes the groups between nodes as CPU 0 sees
/// them, which is the bug of papers/002, section 3.2.
pub(super) fn of(topology: &Topology, cpu: CpuId, of_cpu_0: bool) -> Vec<Domain> {
    let mut domains = Vec::new();
    let within = |groups: Vec<CpuMask>| Domain { groups, spans_nodes: false };
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
        domains.push(Domain { groups, spans_nodes: true });
    }
    domains.retain(|domain| domain.groups.len() > 1);
    domains
}

/// Those of the sets that are in `span`.
fn parts(sets: &[CpuMask], span: &CpuMask) -> Vec<CpuMask> {
    sets.iter().filter(|set| !set.is_empty() && set.is_subset(span)).cloned().collect()
}
