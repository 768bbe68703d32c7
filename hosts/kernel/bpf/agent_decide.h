/* SPDX-License-Identifier: GPL-2.0-only */
/* What the agent has decided: taken out of a batch, kept for a CPU, and carried out there, unless it counts no more. */
#ifndef EKIDEN_BPF_AGENT_DECIDE_H
#define EKIDEN_BPF_AGENT_DECIDE_H

#include "agent_tell.h"

/* A decision for a CPU does not count any more, or the task cannot run there. */
static __noinline int refuse(s32 cpu, u32 slot, u64 seq)
{
	struct message what = {};
	struct task *t = get_task(slot);

	/* It waits on, and the agent hears of that by a number of its own. */
	if (t && __sync_val_compare_and_swap(&t->word, seq << 8 | DECIDED, seq << 8 | WAITS) == (seq << 8 | DECIDED))
		__sync_fetch_and_add(&control.waiting, 1);
	what.seq = seq;
	tell(REFUSED, cpu, slot, &what);
	return 0;
}

/* Has a CPU run what was decided for it, if there is something. */
static __noinline int take_decided(s32 cpu)
{
	struct cpu *c = get_cpu(cpu);
	struct task_struct *p;
	struct task *t;
	u64 slot, seq, slice_ns;
	bool is_good;

	if (!c || !READ(c->next))
		return 0;
	seq = c->seq;
	slice_ns = c->slice_ns ?: slice_default_ns;
	slot = __sync_lock_test_and_set(&c->next, 0);
	t = get_task(slot);
	if (!slot || !t)
		return 0;
	p = bpf_task_from_pid(t->pid);
	if (!p) {
		refuse(cpu, slot, seq);
		return 0;
	}
	/*
	 * What changes where the task may run, or takes it away, puts it on its queue anew, and the kernel ignores what was
	 * inserted before that. So it is looked at after it was inserted.
	 */
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
	is_good = cpu_of(p) == cpu || (!p->migration_disabled && bpf_cpumask_test_cpu(cpu, p->cpus_ptr));
	if (is_good)
		is_good = __sync_val_compare_and_swap(&t->word, seq << 8 | DECIDED, seq << 8 | RUNS) == (seq << 8 | DECIDED);
	if (!is_good) {
		scx_bpf_dispatch_cancel();
		refuse(cpu, slot, seq);
	}
	bpf_task_release(p);
	if (is_good)
		c->looks = 0;
	return is_good;
}

/*
 * Takes back what was decided for CPUs that were on their way out, and are gone: they do not look for work any more. A CPU
 * that leaves may look until the end, so this cannot be done once and for all when it says that it does.
 */
static __noinline int take_back(void)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	u32 cpu;

	bpf_for(cpu, 0, nr_cpus) {
		struct cpu *c = get_cpu(cpu);
		u64 slot;

		if (!c || READ(c->presence) != LEFT || !READ(c->next) || bpf_cpumask_test_cpu(cpu, online))
			continue;
		slot = __sync_lock_test_and_set(&c->next, 0);
		if (slot)
			refuse(cpu, slot, c->seq);
	}
	scx_bpf_put_cpumask(online);
	return 0;
}

/* Carries out one decision. */
static __always_inline u32 fire(struct shot *shot, u32 here)
{
	struct cpu *c = get_cpu(shot->cpu);
	struct task *t = get_task(shot->slot);
	u64 waits = shot->seq << 8 | WAITS, decided = shot->seq << 8 | DECIDED;

	if (!c || !t)
		return STALE;
	if (shot->slot) {
		if (READ(c->next))
			return BUSY;
		if (__sync_val_compare_and_swap(&t->word, waits, decided) != waits)
			return STALE;
		__sync_fetch_and_add(&control.waiting, -1);
		c->seq = shot->seq;
		c->slice_ns = shot->slice_ns;
		__sync_lock_test_and_set(&c->next, shot->slot);
		if (shot->cpu == here)
			return DONE_HERE;
	}
	if (!leaves())
		scx_bpf_kick_cpu(shot->cpu, SCX_KICK_PREEMPT);
	return DONE;
}

/* The whole batch. */
static __noinline int fire_all(u32 here)
{
	u32 count = READ(control.count), i;

	bpf_for(i, 0, count) {
		struct shot *shot;
		u32 key = i;

		shot = bpf_map_lookup_elem(&shots, &key);
		if (!shot)
			break;
		shot->result = fire(shot, here);
	}
	control.count = 0;
	return 0;
}

#endif
