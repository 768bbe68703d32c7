//! Programs other than parallel computations: servers, builds, databases, desktops, and the field's small benchmarks.

use super::{Default, Kind, MS, Param, US};
use crate::builtin;
use crate::random::Random;
use crate::spec::{Device, Group, HintWord, Limit, Step, TaskSpec, WaitMode};

const fn param(name: &'static str, help: &'static str, default: u64, max: u64) -> Param {
    Param { name, help, default: Default::Is(default), max }
}

const fn per_cpu(name: &'static str, help: &'static str) -> Param {
    Param { name, help, default: Default::Cpus, max: 10_000 }
}

const SEED: Param = param("seed", "what is left to chance", 1, u64::MAX);

pub(super) const PIPE: Kind = Kind {
    name: "pipes",
    about: "pairs of tasks that send a byte to and fro",
    params: &[param("pairs", "how many", 1, 10_000), param("round_trips", "of each pair", 2_000, 1_000_000_000)],
    make: |args| {
        let once = |steps| vec![Step::repeat(args.get("round_trips"), steps)];
        let tasks = (0..args.count("pairs")).flat_map(|pair| {
            let (there, back) = (2 * pair, 2 * pair + 1);
            let ping = once([Step::PipeWrite { pipe: there }, Step::PipeRead { pipe: back }]);
            let pong = once([Step::PipeRead { pipe: there }, Step::PipeWrite { pipe: back }]);
            [TaskSpec::new(format!("ping-{pair}"), ping), TaskSpec::new(format!("pong-{pair}"), pong)]
        });
        args.workload("pipes", tasks)
    },
};

pub(super) const MESSAGING: Kind = Kind {
    name: "hackbench",
    about: "groups of senders that each write to every receiver of their group",
    params: &[
        param("groups", "how many", 2, 1_000),
        param("pairs", "senders, and as many receivers, in each", 10, 1_000),
        param("loops", "messages from each sender to each receiver", 20, 1_000_000),
    ],
    make: |args| {
        let pairs = args.count("pairs");
        builtin::messaging(args.cpus, args.count("groups"), pairs, pairs, args.get("loops"))
    },
};

pub(super) const HOGS: Kind = Kind {
    name: "hogs",
    about: "tasks that do nothing but compute",
    params: &[per_cpu("count", "how many"), param("ms", "work of each in milliseconds", 100, 1_000_000)],
    make: |args| {
        let hog = TaskSpec::new("hog", vec![Step::Run { ns: args.get("ms") * MS }]);
        args.workload("hogs", [hog.copies(args.count("count"))])
    },
};

/// Tasks that each wake up by a timer and work a little. Their periods differ, so that they do not stay in step.
pub(super) const PERIODIC: Kind = Kind {
    name: "periodic",
    about: "tasks that wake up by a timer, each with a period of its own, and work a little",
    params: &[
        Param { name: "tasks", help: "how many", default: Default::Cpus, max: 4_194_304 },
        param("rounds", "wake-ups of each", 100, 1_000_000_000),
        param("period_us", "time between two, on average, in microseconds", 1_000, 1_000_000),
        param("work_us", "work of each", 100, 1_000_000),
        param("spread_percent", "how far periods differ from that", 20, 100),
        SEED,
    ],
    make: |args| {
        let mut random = Random::new(args.get("seed"));
        let task = |number| {
            let period_ns = random.around(args.get("period_us") * US, args.get("spread_percent")).max(1);
            let tick = Step::Timer { timer: 0, period_ns, restart: false };
            let work = Step::Run { ns: args.get("work_us") * US };
            let program = vec![Step::repeat(args.get("rounds"), [tick, work])];
            TaskSpec { start_ns: random.up_to(period_ns), ..TaskSpec::new(format!("periodic-{number}"), program) }
        };
        let tasks: Vec<TaskSpec> = (0..args.count("tasks")).map(task).collect();
        args.workload("periodic", tasks)
    },
};

pub(super) const FORKS: Kind = Kind {
    name: "forks",
    about: "tasks that fork children, as many at a time as said, which work briefly or start a new program",
    params: &[
        per_cpu("parents", "how many"),
        param("rounds", "times that each forks", 20, 1_000_000),
        param("children", "at a time", 4, 1_000),
        param("work_us", "work of a child in microseconds", 200, 1_000_000),
        param("exec", "1 if children start a new program after that", 0, 1),
    ],
    make: |args| {
        let mut child = vec![Step::Run { ns: args.get("work_us") * US }];
        if args.get("exec") == 1 {
            child.push(Step::Exec);
        }
        let children = Step::repeat(args.get("children"), [Step::fork(child)]);
        let program = vec![Step::repeat(args.get("rounds"), [children, Step::Wait])];
        args.workload("forks", [TaskSpec::new("parent", program).copies(args.count("parents"))])
    },
};

pub(super) const LIMITED: Kind = Kind {
    name: "limited",
    about: "tasks that compute in a group with a limit, as a container's cpu.max",
    params: &[
        per_cpu("count", "how many"),
        param("ms", "work of each in milliseconds", 50, 1_000_000),
        param("quota_us", "CPU time of the group in a period", 50_000, 1_000_000_000),
        param("period_us", "length of a period", 100_000, 1_000_000),
    ],
    make: |args| {
        let limit = Limit { quota_ns: args.get("quota_us") * US, period_ns: args.get("period_us") * US };
        let hog = TaskSpec::new("hog", vec![Step::Run { ns: args.get("ms") * MS }]).in_group("limited");
        let load = args.workload("limited", [hog.copies(args.count("count"))]);
        load.with_group(Group { limit: Some(limit), ..Group::new("limited") })
    },
};

/// An administrator takes a CPU out of the machine and puts it back, after which the kernel of papers/002, section 3.4, no longer
/// balances between nodes.
pub(super) const HOTPLUG: Kind = Kind {
    name: "hotplug",
    about: "a task that takes a CPU out of the machine and puts it back",
    params: &[
        param("cpu", "which; the last if there is none of that number", 1, 65_535),
        param("rounds", "how often", 1, 1_000_000),
        param("off_us", "for how long, in microseconds", 1_000, 1_000_000_000),
        param("on_us", "how long before the next time", 1_000, 1_000_000_000),
    ],
    make: |args| {
        let cpu = args.count("cpu").min(args.cpus - 1);
        let toggle = [
            Step::CpuOffline { cpu },
            Step::Sleep { ns: args.get("off_us") * US },
            Step::CpuOnline { cpu },
            Step::Sleep { ns: args.get("on_us") * US },
        ];
        // The last CPU cannot go.
        let rounds = if args.cpus > 1 { args.get("rounds") } else { 0 };
        args.workload("hotplug", [TaskSpec::new("operator", vec![Step::repeat(rounds, toggle)])])
    },
};

/// As schbench: message threads wake workers up and wait for their answers; a request is a little thinking and some
/// work. What counts is how long a worker waits for a CPU, which its report says.
pub(super) const SCHBENCH: Kind = Kind {
    name: "schbench",
    about: "message threads that wake workers, which think, work and answer",
    params: &[
        param("messengers", "message threads", 2, 1_000),
        per_cpu("workers", "workers of each"),
        param("rounds", "requests to each worker", 50, 1_000_000),
        param("think_us", "sleep of a worker before it works, in microseconds", 100, 1_000_000),
        param("work_us", "work of a request in microseconds", 500, 1_000_000),
    ],
    make: |args| {
        let (messengers, workers, rounds) = (args.count("messengers"), args.count("workers"), args.get("rounds"));
        let pipe_of = |messenger, worker| messengers + messenger * workers + worker;
        let tasks = (0..messengers).flat_map(|messenger| {
            let wake = (0..workers).map(|worker| Step::PipeWrite { pipe: pipe_of(messenger, worker) });
            let answers = (0..workers).map(|_| Step::PipeRead { pipe: messenger });
            let round: Vec<Step> = wake.chain(answers).collect();
            let lead = TaskSpec::new(format!("messenger-{messenger}"), vec![Step::repeat(rounds, round)]);
            let worker = move |worker| {
                let request = [
                    Step::PipeRead { pipe: pipe_of(messenger, worker) },
                    Step::Sleep { ns: args.get("think_us") * US },
                    Step::Run { ns: args.get("work_us") * US },
                    Step::PipeWrite { pipe: messenger },
                ];
                TaskSpec::new(format!("worker-{messenger}-{worker}"), vec![Step::repeat(rounds, request)])
            };
            std::iter::once(lead).chain((0..workers).map(worker))
        });
        args.workload("schbench", tasks)
    },
};

/// Programs with a thread per CPU that say by hints of `arbiter` how many CPUs they want: a second one wants most of them for a while. What
/// counts is on which CPUs their threads run, and where all others do.
pub(super) const ACTIVATIONS: Kind = Kind {
    name: "activations",
    about: "two programs that ask the policy arbiter for CPUs, the second, of a higher priority, for a third of the time",
    params: &[
        param("first", "CPUs that the first one wants, and its threads", 3, 1_000),
        param("second", "the same of the second", 2, 1_000),
        param("ms", "CPU time of each thread of the first in milliseconds", 300, 1_000_000),
    ],
    make: |args| {
        let says = |queue, words: [HintWord; 4]| Step::WriteHint { queue, hint: words.to_vec(), ring: true };
        let program = |name: &str, queue, threads, priority, start_ns, ms: u64| {
            let [cpus, enroll, none] = [1, 2, 0].map(HintWord::Value);
            let turns = Step::repeat(5 * ms, [Step::Run { ns: 200 * US }, Step::Sleep { ns: 10 * US }]);
            // The first that uses a queue opens it, so the program does before its threads.
            let wants = says(queue, [cpus, none, HintWord::Value(threads), HintWord::Value(priority)]);
            let thread = Step::fork([says(queue, [enroll, HintWord::OwnPid, none, none]), turns]);
            let threads = (0..threads).map(|_| thread.clone());
            let steps = std::iter::once(wants).chain(threads).chain([Step::Wait]).collect();
            TaskSpec { start_ns, ..TaskSpec::new(name, steps) }
        };
        let (ms, first, second) = (args.get("ms"), args.count("first"), args.count("second"));
        let second = program("second", 1, second, 7, ms / 3 * MS, ms / 3);
        args.workload("activations", [program("first", 0, first, 1, 0, ms), second])
    },
};

/// Requests that arrive whether or not the last has been served, most of them short and a few long, as in papers/000,
/// section 5.3. Requests that wait behind a long one are what the load is about.
pub(super) const REQUESTS: Kind = Kind {
    name: "requests",
    about: "requests at random times, most of them short and a few very long, for a pool of workers",
    params: &[
        per_cpu("workers", "how many"),
        param("requests", "how many", 2_000, 1_000_000),
        param("every_us", "time between two requests, on average, in microseconds", 50, 1_000_000),
        param("short_us", "work of a short one", 10, 1_000_000),
        param("long_us", "work of a long one", 10_000, 10_000_000),
        param("long_permille", "how many are long, in thousand", 5, 1_000),
        SEED,
    ],
    make: |args| {
        let mut random = Random::new(args.get("seed"));
        let (workers, requests) = (args.get("workers").max(1), args.get("requests"));
        let arrivals = (0..requests).flat_map(|_| {
            let wait_ns = random.exponential(args.get("every_us") * US);
            [Step::Sleep { ns: wait_ns }, Step::PipeWrite { pipe: 0 }]
        });
        let clients = TaskSpec::new("clients", arrivals.collect());
        let served_by = |worker| {
            let share = requests / workers + u64::from(worker < requests % workers);
            let program = (0..share).flat_map(|_| {
                let long = random.up_to(999) < args.get("long_permille");
                let work_us = args.get(if long { "long_us" } else { "short_us" });
                [Step::PipeRead { pipe: 0 }, Step::Run { ns: work_us * US }]
            });
            TaskSpec::new(format!("worker-{worker}"), program.collect())
        };
        let workers: Vec<TaskSpec> = (0..workers).map(served_by).collect();
        args.workload("requests", std::iter::once(clients).chain(workers))
    },
};

/// As `make -j`: at any time `jobs` compilers, each a process of its own that reads, computes and writes, all in one
/// group, as what is started from one terminal is. In the end one task links.
pub(super) const MAKE: Kind = Kind {
    name: "make",
    about: "a build: many compilers, each a new process, some at a time, in one group",
    params: &[
        per_cpu("jobs", "compilers at a time"),
        param("files", "compilations of each job", 5, 1_000),
        param("ms", "work of a compilation on average, in milliseconds", 20, 100_000),
        SEED,
    ],
    make: |args| {
        let mut random = Random::new(args.get("seed"));
        let job = |_| {
            let files = (0..args.get("files")).flat_map(|_| {
                let work_ns = random.around(args.get("ms") * MS, 80);
                let compile = [Step::Io { device: 0 }, Step::Run { ns: work_ns }, Step::Io { device: 0 }];
                [Step::fork(compile), Step::Wait]
            });
            Step::fork(files.collect::<Vec<_>>())
        };
        let mut program: Vec<Step> = (0..args.get("jobs")).map(job).collect();
        program.extend([Step::Wait, Step::Run { ns: args.get("ms") * MS }]);
        let disk = Device { servers: 8, service_ns: 200 * US, exponential: true };
        let make = args.workload("make", [TaskSpec::new("make", program).in_group("make")]);
        make.with_group(Group::new("make")).with_device(disk)
    },
};

/// Programs of one thread that compute for long, each started from a terminal of its own (papers/002, section 3.1).
pub(super) const R: Kind = Kind {
    name: "r",
    about: "programs of one thread that compute for long, each in a group of its own",
    params: &[param("count", "how many", 2, 1_000), param("ms", "work of each in milliseconds", 1_000, 10_000_000)],
    make: |args| {
        let count = args.count("count");
        let name = |number: u32| format!("r-{number}");
        let task = |number| TaskSpec::new(name(number), vec![Step::Run { ns: args.get("ms") * MS }]);
        let tasks = (0..count).map(|number| task(number).in_group(name(number)));
        let load = args.workload("r", tasks);
        (0..count).fold(load, |load, number| load.with_group(Group::new(name(number))))
    },
};

/// Workers that answer queries together, stage by stage, so that all wait for the last one of each; beside them brief
/// tasks of the kernel that now and then take a CPU away (papers/002, section 3.3).
pub(super) const DATABASE: Kind = Kind {
    name: "database",
    about: "workers that answer queries in stages and wait for each other, beside brief tasks of the system",
    params: &[
        per_cpu("workers", "how many"),
        param("containers", "groups that the workers are spread over, unevenly; 0 for none", 0, 64),
        param("queries", "how many", 3, 100_000),
        param("stages", "of each query", 10, 1_000),
        param("stage_us", "work of a worker in a stage, on average, in microseconds", 2_000, 1_000_000),
        param("transients", "brief tasks at a time", 4, 10_000),
        SEED,
    ],
    make: |args| {
        let mut random = Random::new(args.get("seed"));
        let workers = args.count("workers").max(1);
        let meet = Step::Barrier { barrier: 0, parties: workers, mode: WaitMode::Block };
        let work_ns = args.get("stage_us") * US;
        // A stage is read, computed and handed over in a few pieces, between which a worker sleeps briefly.
        const PIECES: u64 = 4;
        let worker = |random: &mut Random| -> Vec<Step> {
            let stage = |_| {
                let pieces = (0..PIECES)
                    .flat_map(|_| [Step::Run { ns: random.around(work_ns / PIECES, 50) }, Step::Io { device: 0 }]);
                pieces.chain([meet.clone()]).collect::<Vec<_>>()
            };
            let query: Vec<Step> = (0..args.get("stages")).flat_map(stage).collect();
            vec![Step::repeat(args.get("queries"), query)]
        };
        let containers = args.count("containers");
        let mut tasks: Vec<TaskSpec> = (0..workers)
            .map(|number| {
                let task = TaskSpec::new(format!("worker-{number}"), worker(&mut random));
                match container_of(number, workers, containers) {
                    Some(container) => task.in_group(format!("container-{container}")),
                    None => task,
                }
            })
            .collect();
        // For about as long as the queries take.
        const EVERY_NS: u64 = 10 * MS;
        const ROUND: u64 = 10;
        let rounds = (args.get("queries") * args.get("stages") * work_ns).div_ceil(ROUND * EVERY_NS);
        for number in 0..args.get("transients") {
            let brief = (0..ROUND).flat_map(|_| {
                let (sleep_ns, run_ns) = (random.exponential(EVERY_NS), 200 * US + random.up_to(600 * US));
                [Step::Sleep { ns: sleep_ns }, Step::fork([Step::Run { ns: run_ns }]), Step::Wait]
            });
            let brief = vec![Step::repeat(rounds, brief)];
            tasks.push(TaskSpec::new(format!("system-{number}"), brief));
        }
        let storage = Device { servers: workers, service_ns: 100 * US, exponential: true };
        let load = args.workload("database", tasks).with_device(storage);
        (0..containers).fold(load, |load, number| load.with_group(Group::new(format!("container-{number}"))))
    },
};

/// Which container a worker is in: the first has about half of them, the next half of the rest, and so on.
fn container_of(number: u32, workers: u32, containers: u32) -> Option<u32> {
    let last = containers.checked_sub(1)?;
    let (mut begins, mut left) = (0, workers);
    for container in 0..last {
        let size = left.div_ceil(2);
        if number < begins + size {
            return Some(container);
        }
        (begins, left) = (begins + size, left - size);
    }
    Some(last)
}

/// A desktop in use: sound and video that must be on time, a person who types and clicks, pages with their helpers, and
/// a build at a low priority.
pub(super) const DESKTOP: Kind = Kind {
    name: "desktop",
    about: "sound, video, a person's input, web pages, and a build in the background",
    params: &[
        param("ms", "how long, in milliseconds", 500, 1_000_000),
        param("pages", "web pages", 4, 100),
        per_cpu("jobs", "compilers of the build in the background"),
        SEED,
    ],
    make: |args| {
        let mut random = Random::new(args.get("seed"));
        let lasts_ns = args.get("ms") * MS;
        let periodic = |name, period_ns: u64, work_ns| {
            let tick = Step::Timer { timer: 0, period_ns, restart: false };
            TaskSpec::new(name, vec![Step::repeat(lasts_ns / period_ns, [tick, Step::Run { ns: work_ns }])])
        };
        let mut tasks = vec![
            periodic("sound", 5 * MS, 300 * US).nice(-11),
            periodic("video", 16_667 * US, 5 * MS),
            periodic("compositor", 16_667 * US, 2 * MS),
        ];
        let mut bursts = |mean_ns: u64, work_ns: u64| {
            let mut program = Vec::new();
            let mut at_ns = 0;
            while at_ns < lasts_ns {
                let (sleep_ns, run_ns) = (random.exponential(mean_ns), random.around(work_ns, 60));
                program.extend([Step::Sleep { ns: sleep_ns }, Step::Run { ns: run_ns }, Step::Mark]);
                at_ns += sleep_ns + run_ns;
            }
            program
        };
        tasks.push(TaskSpec::new("input", bursts(30 * MS, MS)));
        for page in 0..args.get("pages") {
            tasks.push(TaskSpec::new(format!("page-{page}"), bursts(80 * MS, 6 * MS)));
            tasks.push(TaskSpec::new(format!("page-{page}-helper"), bursts(20 * MS, 500 * US)));
        }
        let build = vec![Step::forever([Step::Run { ns: MS }])];
        let build = TaskSpec::new("build", build).nice(10).in_group("build").copies(args.count("jobs"));
        if args.count("jobs") > 0 {
            tasks.push(build);
        }
        args.workload("desktop", tasks).with_group(Group::new("build")).lasting(lasts_ns)
    },
};
