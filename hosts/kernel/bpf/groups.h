/* SPDX-License-Identifier: GPL-2.0-only */
/* Control groups: which group counts for a task, and what the engine is told of groups. */
#pragma once
#include "outcomes.h"

/* The control group that has the CPU time of a task; none for the root, and for an autogroup. */
static __always_inline struct cgroup *group_of(struct task_struct *p)
{
	struct cgroup *cgrp;

	if (!bpf_core_field_exists(p->sched_task_group))
		return NULL;
	cgrp = p->sched_task_group->css.cgroup;
	return cgrp && cgrp->self.parent ? cgrp : NULL;
}

/*
 * The engine is asked for so many groups, from one up, until it knows one. Where a user has made more than that inside of each other, those
 * between the nearest and the highest levels are left out; the root is always known.
 */
#define ABOVE_NEAR 64
#define ABOVE_LEVELS 32
#define ABOVE_MOST (ABOVE_NEAR + ABOVE_LEVELS + 1)
#define DEPTH_MOST (1 << 16)

/* The group that the other one is in. */
static __always_inline struct cgroup *above(struct cgroup *cgrp)
{
	struct cgroup_subsys_state *parent = cgrp->self.parent;

	return parent ? parent->cgroup : NULL;
}

/* The one that the engine is asked for next, as number `i`. */
static __always_inline struct cgroup *next_above(struct cgroup *cgrp, u32 i)
{
	u32 step;

	cgrp = above(cgrp);
	if (i != ABOVE_NEAR)
		return cgrp;
	bpf_for(step, 0, DEPTH_MOST) {
		if (!cgrp || cgrp->level <= ABOVE_LEVELS)
			break;
		cgrp = above(cgrp);
	}
	return cgrp;
}

/* The task is in a group, or counts for the nearest one above it that the engine knows. */
static __noinline int tell_move(struct task_struct *p, struct cgroup *cgrp)
{
	struct ekiden_event event = EVENT(EKIDEN_TASK_MOVE, cpu_of(p), p);
	struct ekiden_outcome outcome;
	u32 i;

	bpf_for(i, 0, ABOVE_MOST) {
		if (!cgrp)
			break;
		event.args[0] = cgrp->kn->id;
		__builtin_memset(&outcome, 0, sizeof(outcome));
		ekiden_event(&event, &outcome);
		carry_out(event.cpu, &outcome);
		if (outcome.status != EKIDEN_INVALID)
			break;
		cgrp = next_above(cgrp, i + 1);
	}
	return 0;
}

/*
 * Control groups. The kernel tells of all of them before it enables the first task, parents first, and these come with
 * interrupts on; only a move comes with the run-queue lock held, while the task is on no queue.
 */
static __always_inline s32 tell_group(u32 kind, struct cgroup *cgrp, u64 value, u64 flags, u64 runtime_ns)
{
	struct ekiden_event event = {
		.kind = kind,
		.cpu = bpf_get_smp_processor_id(),
		.flags = flags,
		.runtime_ns = runtime_ns,
		.args = { cgrp->kn->id, value },
	};
	struct ekiden_outcome outcome;

	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_cpu_event(&event, &outcome);
	carry_out(event.cpu, &outcome);
	return outcome.status;
}

/* No limit is a quota that cannot be. */
static __always_inline void tell_limit(struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	bool is_limited = quota_us < ~0ULL / 1000;

	tell_group(EKIDEN_GROUP_LIMIT, cgrp, quota_us * 1000, is_limited ? period_us * 1000 : 0, burst_us * 1000);
}

/* Kernels before 7.3 do not say so when a scheduler begins. */
static __always_inline bool is_idle_group(struct cgroup *cgrp)
{
	struct cgroup_subsys_state *css = NULL;
	u32 offset = bpf_core_field_offset(struct cgroup, subsys);
	int idle = 0;

	if (!bpf_core_field_exists(struct task_group, idle))
		return false;
	offset += bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id) * sizeof(css);
	bpf_probe_read_kernel(&css, sizeof(css), (void *)cgrp + offset);
	if (css)
		bpf_probe_read_kernel(&idle, sizeof(idle), (void *)css + bpf_core_field_offset(struct task_group, idle));
	return idle > 0;
}
