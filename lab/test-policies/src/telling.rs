//! First come, first served on each CPU, with a word to say about each task that comes.

use ekiden::prelude::*;

/// See above.
#[derive(Layout)]
pub struct Telling {
    queues: PerCpu<SpinLock<FifoQueue<Self>>>,
    ahead: Note,
    weight: Note,
    says: Says,
}

#[derive(Layout)]
struct Says {
    plus: u64,
    more: bool,
    text: bool,
}

#[policy]
impl Scheduler for Telling {
    const PARAMS: &'static [Param] = &[
        Param { name: "plus", help: "what is added to each value that is noted", default: 0, min: 0, max: 9 },
        Param { name: "more", help: "1: note the weight as well", default: 0, min: 0, max: 1 },
        Param { name: "text", help: "1: say it in words as well", default: 0, min: 0, max: 1 },
    ];

    fn new(env: &Env) -> Self {
        Self {
            queues: PerCpu::new(env, |_| SpinLock::default()),
            ahead: env.note("ahead_tasks"),
            weight: env.note("of_a_name_as_long_as_names_may_b"),
            says: Says { plus: env.param("plus"), more: env.param("more") == 1, text: env.param("text") == 1 },
        }
    }

    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) {
        let mut queue = self.queues[token.cpu()].lock();
        // Between things that a call learns, as both are on the same call log.
        let now_ns = cx.now_ns();
        self.ahead.write(cx, queue.len() as u64 + self.says.plus);
        if self.says.more {
            self.weight.write(cx, task.weight.into());
        }
        if self.says.text {
            ekiden::debug!(cx, "{} ahead at {now_ns} ns", queue.len());
        }
        queue.push_back(token);
        drop(queue);
        cx.idle_cpus();
    }

    fn pick_next_task(&self, _: &Cx, cpu: CpuId) -> Option<Schedulable<Self>> {
        self.queues[cpu].lock().pop_front()
    }
}
