//! Programs that work in steps and wait for each other by spinning, with the characters of the NAS Parallel Benchmarks as
//! papers/002, tables 1 and 3, show them.
//!
//! All threads are made by the first, as OpenMP does, so that where they run is for the scheduler to find out. A step is
//! work of every thread and a barrier; some programs have a part that only the first thread does. Threads never sleep
//! while they wait, so that a scheduler is not asked again where they should run, and how much a program suffers from
//! threads that share CPUs depends on how often it synchronises.

use super::{Args, Default, Kind, MS, Param, US};
use crate::random::Random;
use crate::spec::{Step, TaskSpec, WaitMode, Workload};

const PARAMS: &[Param] = &[
    Param { name: "threads", help: "how many", default: Default::Cpus, max: 4_096 },
    Param { name: "ms", help: "work of each thread in milliseconds", default: Default::Is(100), max: 1_000_000 },
    Param { name: "seed", help: "how the work of a step varies", default: Default::Is(1), max: u64::MAX },
];

/// How a program behaves.
struct Character {
    name: &'static str,
    /// Work of each thread in a step.
    step_ns: u64,
    /// How much that varies between threads.
    imbalance_percent: u64,
    /// What the first thread does alone in each step, of the time that a step takes.
    serial_percent: u64,
}

macro_rules! program {
    ($kind:ident, $name:literal, $about:literal, $step_ns:expr, $imbalance:literal, $serial:literal) => {
        pub(super) const $kind: Kind = Kind {
            name: concat!("nas-", $name),
            about: $about,
            params: PARAMS,
            make: |args| {
                steps(
                    args,
                    &Character {
                        name: $name,
                        step_ns: $step_ns,
                        imbalance_percent: $imbalance,
                        serial_percent: $serial,
                    },
                )
            },
        };
    };
}

program!(BT, "bt", "long steps, some of them serial", 5 * MS, 5, 20);
program!(CG, "cg", "very frequent barriers with spinning", MS, 10, 0);
program!(EP, "ep", "pure computation, and a barrier at the end", 1_000 * MS, 0, 0);
program!(FT, "ft", "very long steps", 20 * MS, 5, 4);
program!(IS, "is", "steps of which a good part is serial", 10 * MS, 5, 35);
program!(MG, "mg", "steps of middling length", 3 * MS, 10, 0);
program!(SP, "sp", "somewhat shorter steps", 2 * MS, 10, 0);
program!(UA, "ua", "uneven short steps, each with a lock, and much spinning", 400 * US, 30, 0);

pub(super) const LU: Kind = Kind {
    name: "nas-lu",
    about: "a pipeline: each thread spins until the one before has done its part of a plane",
    params: PARAMS,
    make: lu,
};

/// The steps of one thread, as long as they do not differ from round to round.
fn steps(args: &Args, character: &Character) -> Workload {
    let Character { name, step_ns, imbalance_percent, serial_percent } = *character;
    let threads = args.count("threads").max(1);
    let total_ns = args.get("ms") * MS;
    let step_ns = step_ns.min(total_ns).max(1);
    let rounds = total_ns.div_ceil(step_ns);
    let mut random = Random::new(args.get("seed"));
    let mode = WaitMode::Spin;
    let meet = Step::Barrier { barrier: 0, parties: threads, mode };
    let serial_ns = step_ns * serial_percent / 100;
    let thread = |number: u32, random: &mut Random| {
        let mut round = vec![Step::Run { ns: random.around(step_ns - serial_ns, imbalance_percent) }];
        if name == "ua" {
            let brief = Step::Run { ns: step_ns / 100 };
            round.extend([Step::Lock { lock: 0, mode }, brief, Step::Unlock { lock: 0 }]);
        }
        round.push(meet.clone());
        if serial_ns > 0 {
            if number == 0 {
                round.push(Step::Run { ns: serial_ns });
            }
            round.push(meet.clone());
        }
        vec![Step::repeat(rounds, round)]
    };
    let programs = (0..threads).map(|number| thread(number, &mut random)).collect();
    args.workload(name, [team(name, programs)])
}

/// A plane goes from thread to thread; each has its part of the next plane in work meanwhile. All meet after a sweep.
fn lu(args: &Args) -> Workload {
    const PART_NS: u64 = 250 * US;
    const PLANES: u64 = 64;
    let threads = args.count("threads").max(1);
    let mut random = Random::new(args.get("seed"));
    let sweeps = (args.get("ms") * MS).div_ceil(PLANES * PART_NS).max(1);
    let program = |number: u32, random: &mut Random| {
        // Barrier 0 is for all, and number `n` for thread `n` and the one before it.
        let hand_over = |barrier| Step::Barrier { barrier, parties: 2, mode: WaitMode::Spin };
        let mut plane = Vec::new();
        if number > 0 {
            plane.push(hand_over(number));
        }
        plane.push(Step::Run { ns: random.around(PART_NS, 10) });
        if number + 1 < threads {
            plane.push(hand_over(number + 1));
        }
        let meet = Step::Barrier { barrier: 0, parties: threads, mode: WaitMode::Spin };
        vec![Step::repeat(sweeps, [Step::repeat(PLANES, plane), meet])]
    };
    let programs = (0..threads).map(|number| program(number, &mut random)).collect();
    args.workload("lu", [team("lu", programs)])
}

/// One task that makes the others, does its own part, and waits for them.
fn team(name: &str, programs: Vec<Vec<Step>>) -> TaskSpec {
    let mut programs = programs.into_iter();
    let own = programs.next().unwrap_or_default();
    let mut steps: Vec<Step> = programs.map(Step::fork).collect();
    steps.extend(own);
    steps.push(Step::Wait);
    TaskSpec::new(name, steps)
}
