/* SPDX-License-Identifier: GPL-2.0-only */
/* Control groups: what the engine is told of them. */
#pragma once
#include "cgroups.h"
#include "outcomes.h"

/* The task is in the group, or counts for the nearest one above it that the engine knows. */
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

static __always_inline void tell_limit(struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	tell_group(EKIDEN_GROUP_LIMIT, cgrp, quota_us * 1000, is_quota(quota_us) ? period_us * 1000 : 0, burst_us * 1000);
}
