//! Machines by name, for the simulator.

use ekiden::{Cpu, Topology};

/// The machines that have names, with what they are.
pub const PRESETS: &[(&str, &str)] = &[
    ("bulldozer64", "papers/002, table 5 and figure 4: 8 nodes of 8 cores in pairs, nodes 1 and 2 two hops apart"),
    ("core8", "papers/000, section 5: one socket of 8 cores"),
    ("xeon80", "papers/000, section 5: two sockets of 20 cores with 2 threads each"),
    ("laptop", "4 big cores with 2 threads each and 8 small ones of half the speed behind another cache"),
];

/// The nodes that are one hop away from each node. The rows of nodes 0 and 3, and that nodes 1 and 2 are not linked, are
/// those of papers/002, section 3.2; the others are chosen so that every node is two hops away at most.
const BULLDOZER_LINKS: [&[u32]; 8] = [
    &[1, 2, 4, 6],
    &[0, 3, 4, 7],
    &[0, 3, 4, 5, 6, 7],
    &[1, 2, 4, 5, 7],
    &[0, 1, 2, 3, 5, 6],
    &[2, 3, 4, 7],
    &[0, 2, 4, 7],
    &[1, 2, 3, 5, 6],
];

/// A machine by its name.
pub fn preset(name: &str) -> Option<Topology> {
    Some(match name {
        "bulldozer64" => bulldozer64(),
        "core8" => Topology::regular(1, 1, 8, 1),
        "xeon80" => Topology::regular(2, 1, 20, 2),
        "laptop" => laptop(),
        _ => return None,
    })
}

fn bulldozer64() -> Topology {
    // Neighbours share a core, as the figures of the paper number them.
    let cpu = |id| Cpu { id, core: id / 2, llc: id / 8, node: id / 8, capacity: 1024, online: true };
    let distance = |from: u32, to: u32| match from {
        _ if from == to => 10,
        _ if BULLDOZER_LINKS[from as usize].contains(&to) => 16,
        _ => 22,
    };
    let distances = (0..8).flat_map(|from| (0..8).map(move |to| distance(from, to))).collect();
    Topology::new((0..64).map(cpu).collect(), distances).expect("cores, caches and nodes are numbered without gaps")
}

fn laptop() -> Topology {
    let big = (0..8).map(|id| Cpu { id, core: id / 2, llc: 0, node: 0, capacity: 1024, online: true });
    let small = (8..16).map(|id| Cpu { id, core: id - 4, llc: 1, node: 0, capacity: 512, online: true });
    Topology::new(big.chain(small).collect(), vec![10]).expect("cores and caches are numbered without gaps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_machine() {
        let sizes: Vec<u32> = PRESETS.iter().map(|(name, _)| preset(name).unwrap().nr_cpus()).collect();
        assert_eq!(sizes, [64, 8, 80, 16]);
        assert!(preset("abacus").is_none());
    }

    #[test]
    fn the_links_of_the_bulldozer_go_both_ways_and_two_hops_reach_everything() {
        let machine = bulldozer64();
        for from in 0..8 {
            for to in 0..8 {
                assert_eq!(machine.distance(from, to), machine.distance(to, from), "{from} and {to}");
                let through = |via: &u32| machine.distance(from, *via) == 16 && machine.distance(*via, to) == 16;
                let near = machine.distance(from, to) <= 16;
                assert!(near || (0..8).any(|via| through(&via)), "{from} to {to}");
            }
        }
        assert_eq!(machine.distance(1, 2), 22);
    }
}
