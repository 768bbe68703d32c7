//! The report of a load that has run. The real kernel's runner and the simulator fill the same struct, so that a check
//! cannot tell which of them it judges.
//!
//! All times count from the load's time 0, when its tasks were released.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a run of a load showed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the load.
    pub workload: String,
    /// The scheduler that ran it: of sched_ext or of the simulator. Absent: the kernel's own.
    pub scheduler: Option<String>,
    /// From time 0 to the end of the last task, or to the moment the load was stopped.
    pub wall_ns: u64,
    /// When time 0 was, by the monotonic clock; absent in the simulator, whose clock begins with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero_ns: Option<u64>,
    /// Every task of the load, in its order, copies told apart.
    pub tasks: Vec<TaskReport>,
}

/// What one task did. Counts begin at time 0: what it took to set the task up is not in them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskReport {
    /// Its name in the load.
    pub name: String,
    /// Its PID, as traces name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The nice value it started with.
    pub nice: i32,
    /// CPU time used.
    pub cpu_ns: u64,
    /// When it first ran its program; absent if it never did.
    pub start_ns: Option<u64>,
    /// When it reached the end of its program; absent if it was stopped before.
    pub finish_ns: Option<u64>,
    /// How often it gave up the CPU because it blocked. One more or less where it was stopped.
    pub voluntary_switches: u64,
    /// How often it lost the CPU while it wanted to go on, yielding included.
    pub involuntary_switches: u64,
    /// How long it was runnable but waited for a CPU; absent where the kernel does not say.
    pub wait_ns: Option<u64>,
    /// How often it changed CPU; absent where the kernel does not say.
    pub migrations: Option<u64>,
    /// The CPU it ran on last, in the load's numbering.
    pub last_cpu: Option<u32>,
    /// When it passed its `Mark` steps. A real run keeps the first 1,000 of each task.
    pub marks_ns: Vec<u64>,
    /// Children started by it and by its children.
    pub forked: u64,
    /// How many of those have ended.
    pub forked_finished: u64,
    /// CPU time of those that have ended.
    pub forked_cpu_ns: u64,
}

impl Report {
    /// The task of this name.
    pub fn task(&self, name: &str) -> Option<&TaskReport> {
        self.tasks.iter().find(|task| task.name == name)
    }

    /// CPU time of all tasks, their children left out.
    pub fn cpu_ns(&self) -> u64 {
        self.tasks.iter().map(|task| task.cpu_ns).sum()
    }

    /// The JSON form, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data with string keys always has a JSON form")
    }
}

/// A table for people: one line a task, times in milliseconds.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
        let ms_if = |ns: Option<u64>| ns.map_or("-".to_string(), ms);
        let count_if = |n: Option<u64>| n.map_or("-".to_string(), |n| n.to_string());
        let total_ns = self.cpu_ns().max(1) as f64;
        let wide = self.tasks.iter().map(|task| task.name.len()).max().unwrap_or(0).max(4);
        writeln!(
            f,
            "{}: {} ms under {}",
            self.workload,
            ms(self.wall_ns),
            self.scheduler.as_deref().unwrap_or("the kernel's own scheduler")
        )?;
        writeln!(
            f,
            "{:wide$} {:>4} {:>10} {:>6} {:>10} {:>10} {:>8} {:>8} {:>6} {:>4}",
            "task", "nice", "cpu ms", "share", "finish ms", "wait ms", "blocked", "pushed", "moves", "cpu"
        )?;
        for task in &self.tasks {
            writeln!(
                f,
                "{:wide$} {:>4} {:>10} {:>5.1}% {:>10} {:>10} {:>8} {:>8} {:>6} {:>4}",
                task.name,
                task.nice,
                ms(task.cpu_ns),
                100.0 * task.cpu_ns as f64 / total_ns,
                ms_if(task.finish_ns),
                ms_if(task.wait_ns),
                task.voluntary_switches,
                task.involuntary_switches,
                count_if(task.migrations),
                count_if(task.last_cpu.map(u64::from)),
            )?;
        }
        Ok(())
    }
}
