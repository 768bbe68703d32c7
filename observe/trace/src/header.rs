//! What a trace is of.

use ekiden::{Cpu, Topology, TopologyError};
use serde::{Deserialize, Serialize};

use crate::{MAGIC, PREAMBLE_LEN, RECORD_LEN, TRACE_VERSION};

/// The host that wrote a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// The simulator.
    #[default]
    Simulator,
    /// A Linux kernel.
    Kernel,
}

/// What a trace is of: machine, policy, load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The host that wrote it.
    pub host: Host,
    /// The policy; absent means the host's own scheduler.
    #[serde(default)]
    pub policy: Option<String>,
    /// The policy's parameters, as they were given.
    #[serde(default)]
    pub params: String,
    /// What ran.
    #[serde(default)]
    pub workload: String,
    /// What decided what was left to chance.
    #[serde(default)]
    pub seed: u64,
    /// Where it began in the trace that it was cut out of, in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub begins_ns: u64,
    /// When it began by the clock that recordings of calls are of, in nanoseconds, if that is another one than the trace's. For one
    /// that was cut out, that is when the whole began.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub clock_ns: u64,
    /// The CPUs, from 0.
    pub cpus: Vec<HeaderCpu>,
    /// Distances between NUMA nodes, row by row, as the firmware gives them: 10 is a node itself.
    #[serde(default)]
    pub distances: Vec<u8>,
}

/// One CPU, by what it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderCpu {
    /// The core.
    pub core: u32,
    /// The last-level cache.
    pub llc: u32,
    /// The NUMA node.
    pub node: u32,
    /// How fast it is; 1024 is the fastest.
    pub capacity: u32,
    /// Whether it was online when the trace began.
    pub online: bool,
}

/// Leaves out a number that is 0: traces that were not cut out of another one keep headers of the older form.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Header {
    /// A header for this machine.
    pub fn of(topology: &Topology) -> Self {
        let nodes = topology.nodes().len() as u32;
        let cpus = topology.cpus().iter().map(|cpu| HeaderCpu {
            core: cpu.core,
            llc: cpu.llc,
            node: cpu.node,
            capacity: cpu.capacity,
            online: cpu.online,
        });
        let distances = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        Self {
            cpus: cpus.collect(),
            distances: distances.map(|(from, to)| topology.distance(from, to) as u8).collect(),
            ..Self::default()
        }
    }

    /// The machine.
    ///
    /// # Errors
    /// When the numbers make no machine: they came from a file.
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        let cpus = self.cpus.iter().zip(0..).map(|(cpu, id)| Cpu {
            id,
            core: cpu.core,
            llc: cpu.llc,
            node: cpu.node,
            capacity: cpu.capacity,
            online: cpu.online,
        });
        Topology::new(cpus.collect(), self.distances.clone())
    }

    /// How many CPUs there are.
    pub fn nr_cpus(&self) -> u32 {
        self.cpus.len() as u32
    }

    /// The beginning of a trace: what comes before the first record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("plain data has a JSON form");
        let len = (PREAMBLE_LEN + json.len()).next_multiple_of(RECORD_LEN) - PREAMBLE_LEN;
        let mut bytes = Vec::with_capacity(PREAMBLE_LEN + len);
        bytes.extend(MAGIC);
        bytes.extend(TRACE_VERSION.to_le_bytes());
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend(json);
        bytes.resize(PREAMBLE_LEN + len, b' ');
        bytes
    }
}
