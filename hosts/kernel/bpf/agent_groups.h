/* SPDX-License-Identifier: GPL-2.0-only */
/* Control groups: the table that the agent reads, and what their limits mean where it is not asked. */
#ifndef EKIDEN_BPF_AGENT_GROUPS_H
#define EKIDEN_BPF_AGENT_GROUPS_H

#include "agent_tell.h"
#include "cgroups.h"

/* The slot of a group, or of the nearest one above it that has one. */
static __noinline u32 slot_of(struct cgroup *cgrp)
{
	u32 i, found = 0;

	bpf_for(i, 0, ABOVE_MOST) {
		u64 id;
		u32 *slot;

		if (!cgrp)
			break;
		id = cgrp->kn->id;
		slot = bpf_map_lookup_elem(&group_slots, &id);
		if (slot) {
			found = *slot;
			break;
		}
		cgrp = next_above(cgrp, i + 1);
	}
	return found;
}

/* The slot of this group itself; 0 for the root, and without one. */
static __always_inline u32 own_slot(struct cgroup *cgrp)
{
	u64 id = cgrp->kn->id;
	u32 *slot = bpf_map_lookup_elem(&group_slots, &id);

	return slot ? *slot : 0;
}

static __always_inline u32 free_group(void)
{
	u32 slot = 0;

	if (!bpf_map_pop_elem(&freed_groups, &slot))
		return slot;
	if (READ(control.groups) >= GROUPS_MOST - 1)
		return 0;
	slot = __sync_fetch_and_add(&control.groups, 1) + 1;
	return slot < GROUPS_MOST ? slot : 0;
}

static __always_inline void set_limit(struct group *group, u64 period_us, u64 quota_us, u64 burst_us)
{
	group->quota_us = quota_us;
	group->burst_us = burst_us;
	group->period_us = is_quota(quota_us) ? period_us : 0;
}

/* Something about a group is different. The agent is to hear of it soon: there may be tasks that have to give way. */
static __noinline int tell_group(u32 slot)
{
	struct message what = {};
	u32 here = bpf_get_smp_processor_id();

	tell(GROUP, here, slot, &what);
	call(here, true);
	return 0;
}

/* Whether the CPU time of a task is limited: it runs only where the agent has said so. */
static __always_inline bool is_limited(struct task *t)
{
	struct group *group;

	if (!READ(control.limits) || !t->group)
		return false;
	group = get_group(t->group);
	return group && READ(group->limited);
}

/*
 * A tick has found a task running. If that was in user mode, and its slice is used up, the kernel calls the scheduler on the
 * way out of the tick: it has no lock that others wait for, and may be held back.
 */
static __always_inline void notes_mode(struct task_struct *p, struct task *t)
{
	struct cpu *c = get_cpu(cpu_of(p));
	/* The kernel has just counted the tick for user mode, if it has found it there. */
	bool was_user = p->utime != t->utime;

	t->utime = p->utime;
	if (c)
		c->at_user = was_user && !p->scx.slice && is_limited(t) ? p->scx.dsq_vtime : 0;
}

OPS(cgroup_init) s32 BPF_PROG(agent_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	struct cgroup *parent = above(cgrp);
	u32 slot = parent ? free_group() : 0;
	struct group *group = get_group(slot);
	u64 id = cgrp->kn->id;

	/* Without room, its tasks count for the one above it. */
	if (!group || (parent && !slot))
		return 0;
	group->parent = slot_of(parent);
	group->level = cgrp->level;
	group->weight = args->weight;
	group->is_idle = parent && is_idle_group(cgrp);
	group->is_delegated = parent && is_delegated(parent);
	group->limited = 1;
	group->period_us = 0;
	if (bpf_core_field_exists(args->bw_quota_us))
		set_limit(group, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);
	if (slot && bpf_map_update_elem(&group_slots, &id, &slot, 0)) {
		bpf_map_push_elem(&freed_groups, &slot, 0);
		return 0;
	}
	__sync_lock_test_and_set(&group->id, id);
	tell_group(slot);
	return 0;
}

OPS(cgroup_exit) void BPF_PROG(agent_cgroup_exit, struct cgroup *cgrp)
{
	u32 slot = own_slot(cgrp);
	struct group *group = get_group(slot);
	u64 id = cgrp->kn->id;

	if (!slot || !group)
		return;
	bpf_map_delete_elem(&group_slots, &id);
	__sync_lock_test_and_set(&group->id, 0);
	tell_group(slot);
	/* If that fails, there is room for one less. */
	bpf_map_push_elem(&freed_groups, &slot, 0);
}

OPS(cgroup_move) void BPF_PROG(agent_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task *t = task_of(p);

	if (!t)
		return;
	t->group = slot_of(to);
	tell_of(JOINED, p, t, has_changed(t), 0, t->group);
}

OPS(cgroup_set_weight) void BPF_PROG(agent_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	u32 slot = own_slot(cgrp);
	struct group *group = get_group(slot);

	if (!slot || !group)
		return;
	group->weight = weight;
	tell_group(slot);
}

OPS(cgroup_set_bandwidth)
void BPF_PROG(agent_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	u32 slot = own_slot(cgrp);
	struct group *group = get_group(slot);

	if (!slot || !group)
		return;
	set_limit(group, period_us, quota_us, burst_us);
	tell_group(slot);
}

OPS(cgroup_set_idle) void BPF_PROG(agent_cgroup_set_idle, struct cgroup *cgrp, bool idle)
{
	u32 slot = own_slot(cgrp);
	struct group *group = get_group(slot);

	if (!slot || !group)
		return;
	group->is_idle = idle;
	tell_group(slot);
}

#endif
