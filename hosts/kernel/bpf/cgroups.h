/* SPDX-License-Identifier: GPL-2.0-only */
/* Control groups, as the kernel has them: which one counts for a task, and which are above it. */
#ifndef EKIDEN_BPF_CGROUPS_H
#define EKIDEN_BPF_CGROUPS_H

#include "kernel.h"

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
 * A task counts for the nearest group above it that there was room for: this many are looked at, from one up. Where a user has
 * made more than that inside of each other, those between the nearest and the highest levels are left out; the root is
 * always known.
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

/* The control group that is looked at next, as number `i`. */
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

/* Whether the group that it is in belongs to a user other than root, who may make others there. */
static __always_inline bool is_delegated(struct cgroup *parent)
{
	struct kernfs_iattrs *attributes = parent->kn->iattr;

	return attributes && attributes->ia_uid.val;
}

/* Without a limit, the quota is all ones. */
static __always_inline bool is_quota(u64 quota_us)
{
	return quota_us < ~0ULL / 1000;
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

#endif
