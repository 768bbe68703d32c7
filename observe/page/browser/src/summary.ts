// What the Rust side says of a trace: observe/page/src/summary.rs.

export interface Waits {
  count: number;
  mean_ns: number;
  max_ns: number;
  /** Where a bucket begins and ends, in nanoseconds, and what is in it. */
  buckets: [number, number, number][];
}

export interface Violation {
  check: string;
  since_ns: number;
  at_ns: number;
  cpus: number[];
  tasks: { pid: number; name: string }[];
  message: string;
}

/** CPU time wasted over time, in pieces of equal length from 0 on. */
export interface Waste {
  bin_ns: number;
  wasted_ns: number[];
}

/** What the checks say. */
export interface Verdict {
  violations: Violation[];
  waste: Waste;
}

export interface Summary {
  heading: string | null;
  host: string;
  policy: string | null;
  params: string;
  workload: string;
  seed: number;
  machine: string;
  end_ns: number;
  bins: number;
  bin_ns: number;
  depth_max: number;
  cpus: [node: number, llc: number, core: number][];
  tasks_max: number;
  load_max: number;
  has_decisions: boolean;
  pids: number[];
  names: string[];
  /** What the policy notes, and what is said in queues of hints. */
  note_names: string[];
  counters: [string, string][];
  waits: [string, { wake: Waits; queue: Waits }][];
  /** Absent while the checks are still at work. */
  violations: Violation[] | null;
  waste: Waste | null;
}

/** A task as people call it. */
export function taskName(summary: Summary, task: number): string {
  const [pid, name] = [summary.pids[task], summary.names[task]];
  return name ? `${name} (PID ${pid})` : `PID ${pid}`;
}
