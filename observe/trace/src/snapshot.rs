//! What the machine is like at a moment, as records for whatever begins to read there.

use crate::{At, Machine, Record, What};

impl Machine {
    /// The tasks that live, the lowest PID first.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.tasks().map(|task| task.pid).collect();
        pids.sort_unstable();
        pids
    }

    /// What groups may use.
    pub(crate) fn tell_limits(&self, time_ns: u64) -> Vec<Record> {
        let pieces = |(group, values): (&u32, &[u64; 2])| {
            let record = Record { time_ns, cpu: 0, what: What::Limit, pid: *group, value: values[0] };
            [record, Record { cpu: 1, value: values[1], ..record }]
        };
        self.limits.iter().flat_map(pieces).collect()
    }

    /// Records that introduce a task: its name, nice value, CPUs, group and class.
    pub(crate) fn introduce(&self, pid: u32, time_ns: u64) -> Vec<Record> {
        let Some(task) = self.task(pid) else { return Vec::new() };
        let cpu = task.at.cpu().unwrap_or(0);
        let record = |what, value| Record { time_ns, cpu, what, pid, value };
        let pieces = |what, values: Vec<u64>| {
            let record = record(what, 0);
            (0..).zip(values).map(move |(cpu, value)| Record { cpu, value, ..record })
        };
        let mut records = vec![record(What::New, task.parent)];
        let name = task.name.chunks_exact(8).filter_map(|piece| Some(u64::from_le_bytes(piece.try_into().ok()?)));
        records.extend(pieces(What::Name, name.collect()));
        records.extend((task.nice != 0).then(|| record(What::Nice, i64::from(task.nice) as u64)));
        if !task.allowed.is_empty() {
            let count: u32 = task.allowed.iter().map(|word| word.count_ones()).sum();
            records.push(record(What::Affinity, count.into()));
            records.extend(pieces(What::Allowed, task.allowed.clone()));
        }
        records.extend((task.group != 0).then(|| record(What::Group, task.group)));
        records.extend(task.departed.then(|| record(What::Depart, 0)));
        records
    }

    /// Where a task is: that it waits, and that it runs.
    pub(crate) fn tell_place(&self, pid: u32, time_ns: u64) -> Vec<Record> {
        let Some(task) = self.task(pid) else { return Vec::new() };
        let Some(cpu) = task.at.cpu() else { return Vec::new() };
        let waits = Record { time_ns, cpu, what: What::Enqueue, pid, value: 0 };
        let runs = Record { what: What::Run, value: task.slice_ns, ..waits };
        if matches!(task.at, At::Running(_)) { vec![waits, runs] } else { vec![waits] }
    }

    /// Records of what is under way beside the tasks: locks that are held, a policy that is being replaced or was taken out.
    pub(crate) fn tell_under_way(&self, time_ns: u64) -> Vec<Record> {
        let record = |what, cpu, value| Record { time_ns, cpu, what, pid: 0, value };
        let held = (0..).zip(&self.cpus).flat_map(|(number, cpu)| cpu.held.iter().map(move |class| (number, *class)));
        let mut records: Vec<Record> = held.map(|(cpu, class)| record(What::Lock, cpu, class)).collect();
        records.extend(self.is_upgrading.then(|| record(What::Upgrade, 0, 1)));
        records.extend(self.is_over.then(|| record(What::Fault, 0, 0)));
        records
    }
}
