/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tasks beyond the table: those that the engine has no room for. They wait in queues of our own, which a CPU looks at where
 * the engine says so. sched_ext's global queue would not do: the kernel serves it before everything else.
 *
 * Tasks that may run on every CPU wait in one queue for all of them, so that it is first come, first served on the whole machine.
 * Others wait in that of the CPU on whose run queue they are: in the other one, CPUs would have to
 * search for a task that they may run.
 */
#ifndef EKIDEN_BPF_BEYOND_H
#define EKIDEN_BPF_BEYOND_H

#include "kernel.h"

/* The queue for all. The queue of a CPU has its number. */
#define BEYOND_ALL (1ULL << 32)

/* Less than a tick, at which it ends. */
#define BEYOND_SLICE_NS 500000ULL

static __always_inline s32 make_beyond_queues(void)
{
	s32 ret = scx_bpf_create_dsq(BEYOND_ALL, -1);
	u32 cpu, count = scx_bpf_nr_cpu_ids();

	bpf_for(cpu, 0, count) {
		if (ret)
			break;
		ret = scx_bpf_create_dsq(cpu, -1);
	}
	return ret;
}

/* How many wait for a CPU: those that need it, and its part of the others. */
static __always_inline u64 beyond_waiting(s32 cpu)
{
	const struct cpumask *online;
	u64 own = scx_bpf_dsq_nr_queued(cpu), all = scx_bpf_dsq_nr_queued(BEYOND_ALL);
	u32 cpus;

	if (!all)
		return own;
	online = scx_bpf_get_online_cpumask();
	cpus = bpf_cpumask_weight(online) ?: 1;
	scx_bpf_put_cpumask(online);
	return own + (all + cpus - 1) / cpus;
}

static __always_inline bool may_run_anywhere(struct task_struct *p)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	bool may = !p->migration_disabled && bpf_cpumask_subset(online, p->cpus_ptr);

	scx_bpf_put_cpumask(online);
	return may;
}

/*
 * Where a task waits whose CPU is idle, that one looks by itself: the kernel wakes it up for the wake-up. Where one has
 * given way, another CPU may be idle, and has it at once. Not asked for by a CPU that leaves: see leaves().
 */
static __noinline int wait_beyond(struct task_struct *p, u64 enq_flags)
{
	u64 queue = SCX_DSQ_LOCAL;
	s32 idle;

	if (!(enq_flags & SCX_ENQ_LAST)) {
		queue = may_run_anywhere(p) ? BEYOND_ALL : cpu_of(p);
		if (!(enq_flags & SCX_ENQ_WAKEUP) && p->nr_cpus_allowed > 1 && !p->migration_disabled && !leaves()) {
			idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
			if (idle >= 0)
				queue = SCX_DSQ_LOCAL_ON | idle;
		}
	}
	scx_bpf_dsq_insert(p, queue, BEYOND_SLICE_NS, enq_flags);
	return 0;
}

/* Since when the first of a queue waits, in ticks. */
static __always_inline u64 waits_since(u64 queue)
{
	struct task_struct *p;
	u64 since = 0;

	bpf_for_each(scx_dsq, p, queue, 0) {
		since = p->scx.runnable_at;
		break;
	}
	return since;
}

/* Has a CPU run the task of both its queues that has waited longer. False if none waits that may run there. */
static __noinline bool run_beyond(s32 cpu)
{
	s32 own = scx_bpf_dsq_nr_queued(cpu), all = scx_bpf_dsq_nr_queued(BEYOND_ALL);

	if (own <= 0)
		return all > 0 && scx_bpf_dsq_move_to_local(BEYOND_ALL);
	if (all <= 0 || (s64)(waits_since(cpu) - waits_since(BEYOND_ALL)) <= 0)
		return scx_bpf_dsq_move_to_local(cpu) || scx_bpf_dsq_move_to_local(BEYOND_ALL);
	return scx_bpf_dsq_move_to_local(BEYOND_ALL) || scx_bpf_dsq_move_to_local(cpu);
}

#endif
