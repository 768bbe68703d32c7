//! Machines in a few words, for the simulator.

use std::fmt;

use ekiden::{Cpu, FULL_CAPACITY, MAX_CPUS, Topology};

use crate::{MachineError, PRESETS, preset, read_sysfs};

/// The distance of a node from itself, and from another one if nothing is said.
const LOCAL_DISTANCE: u8 = 10;
const REMOTE_DISTANCE: u8 = 20;

/// A distance above this one is no distance: firmware says 255 for "no way".
const MAX_DISTANCE: u64 = 254;

/// A mistake in a machine's description, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// Where, in bytes from the beginning.
    pub at: usize,
    /// The mistake, and what to write instead.
    pub what: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: {}", self.at + 1, self.what)
    }
}

impl std::error::Error for SpecError {}

/// A machine by its description.
///
/// | description | machine |
/// | --- | --- |
/// | `host` | this one |
/// | `bulldozer64` and the other [`PRESETS`] | what the table says |
/// | `2x2x4x2` | 2 nodes of 2 last-level caches of 4 cores of 2 threads |
/// | `1x1x4x2+1x8x1@512` | one node: a cache with 4 cores of 2 threads, and one with 8 cores of half the speed |
/// | `4x1x8x1:16` | four nodes, each at distance 16 from the others |
/// | `3x1x8x1:10,16,22/16,10,16/22,16,10` | three nodes with these distances between them, row by row |
///
/// CPUs are numbered as Linux does on most machines: the first thread of every core, then the second ones. Speeds are
/// out of 1,024; distances are those of the firmware's table, 10 being a node itself.
///
/// # Errors
/// When the description makes no machine; with the place.
pub fn parse(text: &str) -> Result<Topology, MachineError> {
    if text == "host" {
        return read_sysfs("/sys".as_ref());
    }
    if let Some(machine) = preset(text) {
        return Ok(machine);
    }
    if text.starts_with(|first: char| first.is_alphabetic()) {
        let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        let what =
            format!("there is no machine `{text}`; write for example 2x2x4x2, host, or one of {}", names.join(", "));
        return Err(SpecError { at: 0, what }.into());
    }
    Ok(Parser { text, at: 0 }.machine()?)
}

/// Cores of one kind.
struct Kind {
    caches: u32,
    cores: u32,
    threads: u32,
    capacity: u32,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn machine(mut self) -> Result<Topology, SpecError> {
        let nodes = self.count("nodes")?;
        self.expect('x', "x, and how many last-level caches a node has")?;
        let mut kinds = vec![self.kind()?];
        while self.take('+') {
            kinds.push(self.kind()?);
        }
        let nr_cpus = kinds.iter().try_fold(0_u64, |sum, kind| {
            let each =
                [kind.caches, kind.cores, kind.threads].iter().try_fold(1_u64, |n, by| n.checked_mul((*by).into()));
            each.and_then(|each| sum.checked_add(each))
        });
        let nr_cpus = nr_cpus.and_then(|each| each.checked_mul(nodes.into()));
        if nr_cpus.is_none_or(|nr_cpus| nr_cpus > MAX_CPUS.into()) {
            return Err(SpecError { at: 0, what: format!("a machine has at most {MAX_CPUS} CPUs: make it smaller") });
        }
        let distances_at = self.at;
        let distances = self.distances(nodes as usize)?;
        if self.at < self.text.len() {
            return Err(self.wrong("nothing more, or + and another kind of cores, or : and distances"));
        }
        let distances_wrong = |error| SpecError { at: distances_at, what: format!("{error}") };
        Topology::new(cpus(nodes, &kinds), distances).map_err(distances_wrong)
    }

    fn kind(&mut self) -> Result<Kind, SpecError> {
        let caches = self.count("last-level caches")?;
        self.expect('x', "x, and how many cores a cache has")?;
        let cores = self.count("cores")?;
        self.expect('x', "x, and how many threads a core has")?;
        let threads = self.count("threads")?;
        let capacity =
            if self.take('@') { self.number("a speed", FULL_CAPACITY.into())? as u32 } else { FULL_CAPACITY };
        Ok(Kind { caches, cores, threads, capacity })
    }

    fn distances(&mut self, nodes: usize) -> Result<Vec<u8>, SpecError> {
        let even = |remote| {
            let between = move |index| if index / nodes == index % nodes { LOCAL_DISTANCE } else { remote };
            (0..nodes * nodes).map(between).collect()
        };
        if !self.take(':') {
            return Ok(even(REMOTE_DISTANCE));
        }
        let begin = self.at;
        let mut distances = vec![self.number("a distance", MAX_DISTANCE)? as u8];
        let (mut rows, mut row_len) = (1, 1);
        while self.at < self.text.len() {
            if self.take(',') {
                row_len += 1;
            } else {
                self.expect('/', ", and the next distance, or / and the next row")?;
                self.row_is_full(row_len, nodes)?;
                (rows, row_len) = (rows + 1, 1);
            }
            distances.push(self.number("a distance", MAX_DISTANCE)? as u8);
        }
        if distances.len() == 1 {
            return Ok(even(distances[0]));
        }
        self.row_is_full(row_len, nodes)?;
        if rows != nodes {
            return Err(SpecError {
                at: begin,
                what: format!("{rows} rows of distances for {nodes} nodes: write one a node"),
            });
        }
        Ok(distances)
    }

    fn row_is_full(&self, row_len: usize, nodes: usize) -> Result<(), SpecError> {
        if row_len == nodes {
            return Ok(());
        }
        Err(SpecError {
            at: self.at,
            what: format!("{row_len} distances in a row for {nodes} nodes: write one a node"),
        })
    }

    fn count(&mut self, what: &str) -> Result<u32, SpecError> {
        Ok(self.number(&format!("how many {what}"), MAX_CPUS.into())? as u32)
    }

    /// A number from 1.
    fn number(&mut self, what: &str, most: u64) -> Result<u64, SpecError> {
        let rest = &self.text[self.at..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        match rest[..digits].parse() {
            Ok(number) if (1..=most).contains(&number) => {
                self.at += digits;
                Ok(number)
            }
            _ => Err(self.wrong(&format!("{what}, from 1 to {most}"))),
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        let is_there = self.text[self.at..].starts_with(wanted);
        self.at += if is_there { wanted.len_utf8() } else { 0 };
        is_there
    }

    fn expect(&mut self, wanted: char, what: &str) -> Result<(), SpecError> {
        if self.take(wanted) { Ok(()) } else { Err(self.wrong(what)) }
    }

    fn wrong(&self, expected: &str) -> SpecError {
        let found = match self.text[self.at..].chars().next() {
            Some(found) => format!("`{found}`"),
            None => "the end".into(),
        };
        SpecError { at: self.at, what: format!("{found} is where {expected} should be, as in 2x2x4x2") }
    }
}

/// The CPUs: the first thread of every core, then the second ones, and so on.
fn cpus(nodes: u32, kinds: &[Kind]) -> Vec<Cpu> {
    let mut first_threads = Vec::new();
    let (mut core, mut llc) = (0, 0);
    for node in 0..nodes {
        for kind in kinds {
            for _ in 0..kind.caches {
                for _ in 0..kind.cores {
                    let cpu = Cpu { id: 0, core, llc, node, capacity: kind.capacity, online: true };
                    first_threads.push((cpu, kind.threads));
                    core += 1;
                }
                llc += 1;
            }
        }
    }
    let most = kinds.iter().map(|kind| kind.threads).max().unwrap_or(0);
    let threads = (0..most).flat_map(|thread| first_threads.iter().filter(move |(_, threads)| *threads > thread));
    threads.zip(0..).map(|((cpu, _), id)| Cpu { id, ..*cpu }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn machine(text: &str) -> Topology {
        parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_regular_machine_is_the_one_that_topology_makes() {
        for [nodes, llcs, cores, threads] in [[1, 1, 1, 1], [2, 2, 4, 2], [8, 1, 4, 1], [3, 2, 1, 4]] {
            let text = format!("{nodes}x{llcs}x{cores}x{threads}");
            assert_eq!(machine(&text), Topology::regular(nodes, llcs, cores, threads), "{text}");
        }
    }

    #[test]
    fn kinds_of_cores_share_a_node_and_differ_in_speed() {
        let laptop = machine("1x1x4x2+1x8x1@512");
        assert_eq!((laptop.nr_cpus(), laptop.nodes().len(), laptop.llcs().len()), (16, 1, 2));
        assert_eq!(laptop.smt_siblings(0).to_string(), "0,12");
        assert_eq!((laptop.cpu(3).capacity, laptop.cpu(4).capacity, laptop.cpu(12).capacity), (1024, 512, 1024));
    }

    #[test]
    fn distances_are_one_number_or_a_table() {
        assert_eq!(machine("2x1x1x1:17").distance(0, 1), 17);
        let three = machine("3x1x1x1:10,16,22/16,10,16/22,16,10");
        assert_eq!((three.distance(0, 2), three.distance(2, 1), three.distance(1, 1)), (22, 16, 10));
    }

    #[test]
    fn what_makes_no_machine_is_refused_with_its_place() {
        let refused = |text: &str| match parse(text) {
            Err(MachineError::Spec(error)) => (error.at, error.what),
            other => panic!("{text}: {other:?}"),
        };
        for (text, at, what) in [
            ("", 0, "the end is where how many nodes"),
            ("abacus", 0, "there is no machine `abacus`"),
            ("2x2x4", 5, "the end is where x, and how many threads"),
            ("2x0x4x1", 2, "`0` is where how many last-level caches"),
            ("2x2x4x1x9", 7, "`x` is where nothing more"),
            ("9999x9999x9999x9999", 0, "`9` is where how many nodes"),
            ("8192x8192x8192x8192", 0, "at most 8192 CPUs"),
            ("1x1x4x1@2000", 8, "a speed, from 1 to 1024"),
            ("2x1x4x1:10,20", 8, "1 rows of distances for 2 nodes"),
            ("2x1x4x1:10,20;20,10", 13, "`;` is where , and the next distance"),
            ("2x1x4x1:10,20/20", 16, "1 distances in a row for 2 nodes"),
            ("2x1x4x1:10,20/20,10/1,1", 8, "3 rows of distances for 2 nodes"),
            ("2x1x4x1:300", 8, "a distance, from 1 to 254"),
            ("2é", 1, "`é` is where x"),
        ] {
            let (found_at, found) = refused(text);
            assert!(found.contains(what) && found_at == at, "{text}: {found_at}: {found}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "[0-9x+@:,/ é]{0,24}") {
            let _ = parse(&text);
        }
    }
}
