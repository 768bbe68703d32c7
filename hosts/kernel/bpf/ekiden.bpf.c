// SPDX-License-Identifier: GPL-2.0-only
/*
 * The sched_ext half of the kernel host. Each operation fills in an event, calls one kfunc of ekiden.ko and carries out
 * the outcome. No task is chosen here, but for those beyond the table: see beyond.h.
 *
 * The engine's id of a task is kept in p->scx.dsq_vtime, which the kernel leaves alone as long as no queue is ordered by
 * it: finding a task costs one load. A task that the engine has no room for has id 0: see beyond.h.
 *
 * ops.dequeue is not used: kernels since 7.1 call it for every dispatch. What it would tell follows from ops.quiescent
 * and from the next ops.enqueue.
 */
#include "groups.h"

char _license[] SEC("license") = "GPL";

/* How long a task runs if the policy does not say. */
const volatile u64 slice_default_ns = SCX_SLICE_DFL;

/* Whether no other policy can take over, and whether it chooses CPUs; the verifier removes what cannot happen then. */
const volatile bool is_fixed = false;
const volatile bool fixed_chooses_cpu = false;

/* Why the kernel let go of us, in its own words, for the loader. */
char exit_reason[64];
char exit_message[256];

static __always_inline u64 nice_of(struct task_struct *p)
{
	return (s64)p->static_prio - 120;
}

/* The task gets an id, or 0 if there is no room for it. One that has waited for room before says so by `flags`. */
static __noinline u64 enable(struct task_struct *p, u64 flags)
{
	struct ekiden_event event = EVENT(EKIDEN_TASK_ENABLE, cpu_of(p), p);
	struct ekiden_outcome outcome;

	event.flags = flags;
	event.args[0] = nice_of(p);
	event.args[1] = p->policy == SCHED_IDLE_POLICY;
	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_task_enable(p, &event, &outcome);
	if (bpf_ksym_exists(scx_bpf_task_set_dsq_vtime))
		scx_bpf_task_set_dsq_vtime(p, outcome.task);
	else
		p->scx.dsq_vtime = outcome.task;
	carry_out(event.cpu, &outcome);
	if (outcome.task)
		tell_move(p, group_of(p));
	return outcome.task;
}

/*
 * The task goes to a CPU that is idle and was claimed for it: everything that this CPU would have to ask is settled here.
 * If the policy has it run something else, the task takes the usual way through ops.enqueue.
 */
static __always_inline void place_on_idle(struct task_struct *p, s32 cpu)
{
	/* `args` stay unset: the engine reads none for this kind, and two stores are saved. */
	struct ekiden_event event;
	struct ekiden_outcome outcome;

	event.kind = EKIDEN_ENQUEUE;
	event.cpu = cpu;
	event.task = p->scx.dsq_vtime;
	event.runtime_ns = p->se.sum_exec_runtime;
	if (!event.task)
		return;
	event.flags = EKIDEN_ENQUEUE_WAKEUP | EKIDEN_ENQUEUE_MAY_PLACE;
	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_event(&event, &outcome);
	if (outcome.status == EKIDEN_RUN)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, outcome.slice_ns ?: slice_default_ns, 0);
	carry_out(event.cpu, &outcome);
}

OPS(select_cpu) s32 BPF_PROG(ekiden_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

	if (is_fixed ? fixed_chooses_cpu : ekiden_chooses_cpu(p->scx.dsq_vtime)) {
		struct ekiden_event event = EVENT(EKIDEN_SELECT_CPU, prev_cpu, p);
		struct ekiden_outcome outcome;

		event.flags = (wake_flags & 0xffff) | (u64)(bpf_get_smp_processor_id() + 1) << 16;
		event.args[0] = cpu;
		__builtin_memset(&outcome, 0, sizeof(outcome));
		ekiden_event(&event, &outcome);
		carry_out(event.cpu, &outcome);
		if (outcome.status == EKIDEN_DONE && outcome.cpu != cpu) {
			/* It is idle and was claimed, and counts as idle again only when it has passed through the scheduler. */
			if (is_idle && !leaves())
				scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			return outcome.cpu;
		}
	}
	if (is_idle)
		place_on_idle(p, cpu);
	return cpu;
}

OPS(enqueue) void BPF_PROG(ekiden_enqueue, struct task_struct *p, u64 enq_flags)
{
	/* `args` stay unset: the engine reads none for this kind, and two stores are saved. */
	struct ekiden_event event;
	struct ekiden_outcome outcome;

	event.kind = EKIDEN_ENQUEUE;
	event.cpu = cpu_of(p);
	event.task = p->scx.dsq_vtime;
	event.runtime_ns = p->se.sum_exec_runtime;
	if (!event.task) {
		/* There may be room by now. */
		event.task = enable(p, EKIDEN_INIT_AGAIN);
		if (!event.task) {
			wait_beyond(p, enq_flags);
			return;
		}
	}
	/*
	 * A task that may go anywhere is not put behind a real-time task: there it could not be taken elsewhere. And a CPU
	 * that is on its way to idle because the policy wanted it so is not stopped.
	 */
	event.flags = (enq_flags & SCX_ENQ_WAKEUP ? EKIDEN_ENQUEUE_WAKEUP : 0) |
		      (enq_flags & SCX_ENQ_LAST ? EKIDEN_ENQUEUE_LAST : 0) |
		      (p->nr_cpus_allowed == 1 && !(enq_flags & SCX_ENQ_LAST) ? EKIDEN_ENQUEUE_MAY_PLACE : 0);
	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_event(&event, &outcome);
	/* Common case: the task was queued, and the outcome carries no fault. */
	if (__builtin_expect(outcome.status == EKIDEN_DONE, true)) {
		carry_out_wishes(event.cpu, &outcome);
		return;
	}
	if (outcome.status == EKIDEN_RUN)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, outcome.slice_ns ?: slice_default_ns, enq_flags);
	carry_out(event.cpu, &outcome);
}

/* The task that was picked cannot run on this CPU, which looks for another: the task's affinity changed since the engine looked. */
static __noinline int refuse(struct task_struct *p, s32 cpu)
{
	struct ekiden_event event = EVENT(EKIDEN_PICK_REFUSED, cpu_of(p), p);
	struct ekiden_outcome outcome;

	event.args[0] = EKIDEN_REFUSED_NOT_ALLOWED;
	event.args[1] = cpu + 1;
	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_event(&event, &outcome);
	carry_out(event.cpu, &outcome);
	scx_bpf_kick_cpu(cpu, 0);
	return 0;
}

/* Has a CPU run what was picked, if something was. */
static __always_inline bool run_picked(s32 cpu, struct task_struct *prev, struct task_struct *p, struct ekiden_outcome *outcome)
{
	if (p) {
		/*
		 * What changes where the task may run puts it on its queue anew, and the kernel ignores what was inserted before
		 * that. So it is looked at after it was inserted: what changed before is seen, and what changes later is ignored.
		 */
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, outcome->slice_ns ?: slice_default_ns, 0);
		if (cpu_of(p) != cpu && (p->migration_disabled || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))) {
			scx_bpf_dispatch_cancel();
			refuse(p, cpu);
		}
	} else if (outcome->status == EKIDEN_KEEP_PREVIOUS && prev) {
		set_slice(prev, outcome->slice_ns ?: slice_default_ns);
	} else {
		return outcome->status != EKIDEN_BEYOND;
	}
	return true;
}

/* It is the turn of tasks beyond the table, or policies have nothing. If there are none, and policies were not asked, they are. */
static __noinline int look_beyond(s32 cpu, struct task_struct *prev, struct ekiden_outcome *outcome)
{
	struct ekiden_event event = { .kind = EKIDEN_PICK, .cpu = cpu, .flags = EKIDEN_PICK_POLICIES };

	if (run_beyond(cpu))
		return 0;
	if (prev && prev->scx.flags & SCX_TASK_QUEUED && !prev->scx.dsq_vtime) {
		set_slice(prev, BEYOND_SLICE_NS);
		return 0;
	}
	if (outcome->cpu)
		return 0;
	carry_out(cpu, outcome);
	__builtin_memset(outcome, 0, sizeof(*outcome));
	run_picked(cpu, prev, ekiden_pick(&event, outcome), outcome);
	return 0;
}

OPS(dispatch) void BPF_PROG(ekiden_dispatch, s32 cpu, struct task_struct *prev)
{
	/* `args` stay unset: the engine reads none for this kind, and two stores are saved. */
	struct ekiden_event event;
	struct ekiden_outcome outcome;
	struct task_struct *p;

	event.kind = EKIDEN_PICK;
	event.cpu = cpu;
	if (prev) {
		event.task = prev->scx.dsq_vtime;
		event.flags = prev->scx.flags & SCX_TASK_QUEUED ? EKIDEN_PICK_PREV_RUNNABLE : 0;
		event.runtime_ns = prev->se.sum_exec_runtime;
	} else {
		event.task = 0;
		event.flags = 0;
		event.runtime_ns = 0;
	}
	__builtin_memset(&outcome, 0, sizeof(outcome));
	p = ekiden_pick(&event, &outcome);
	if (!run_picked(cpu, prev, p, &outcome))
		look_beyond(cpu, prev, &outcome);
	/* With a task to run there is no fault. */
	if (p)
		carry_out_wishes(cpu, &outcome);
	else
		carry_out(cpu, &outcome);
}

OPS(quiescent) void BPF_PROG(ekiden_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct ekiden_event event = EVENT(EKIDEN_BLOCK, cpu_of(p), p);
	struct ekiden_outcome outcome;

	/* Everything else comes back at once, through enqueue, or leaves through disable. */
	if (!(deq_flags & SCX_DEQ_SLEEP))
		return;
	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_event(&event, &outcome);
	carry_out(event.cpu, &outcome);
}

/* An event about a task with nothing to return. */
static __always_inline void tell(u32 kind, struct task_struct *p, u64 arg0, u64 arg1)
{
	struct ekiden_event event = EVENT(kind, cpu_of(p), p);
	struct ekiden_outcome outcome;

	event.args[0] = arg0;
	event.args[1] = arg1;
	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_event(&event, &outcome);
	carry_out(event.cpu, &outcome);
}

OPS(tick) void BPF_PROG(ekiden_tick, struct task_struct *p)
{
	tell(EKIDEN_TICK, p, beyond_waiting(cpu_of(p)), 0);
}

OPS(yield) bool BPF_PROG(ekiden_yield, struct task_struct *from, struct task_struct *to)
{
	/* yield_to() is not supported, and says so. */
	if (to)
		return false;
	tell(EKIDEN_YIELD, from, 0, 0);
	set_slice(from, 0);
	return false;
}

OPS(set_weight) void BPF_PROG(ekiden_set_weight, struct task_struct *p, u32 weight)
{
	tell(EKIDEN_NICE, p, nice_of(p), p->policy == SCHED_IDLE_POLICY);
}

OPS(set_cpumask) void BPF_PROG(ekiden_set_cpumask, struct task_struct *p, const struct cpumask *cpumask)
{
	tell(EKIDEN_AFFINITY, p, 0, 0);
}

OPS(enable) void BPF_PROG(ekiden_enable, struct task_struct *p)
{
	enable(p, 0);
}

/* The task dies, or leaves for another class, or the whole scheduler ends. Its id ends here in each case. */
OPS(disable) void BPF_PROG(ekiden_disable, struct task_struct *p)
{
	tell(p->__state & TASK_DEAD ? EKIDEN_TASK_EXIT : EKIDEN_TASK_DISABLE, p, 0, 0);
}

static __always_inline void tell_cpu(u32 kind, s32 cpu)
{
	struct ekiden_event event = { .kind = kind, .cpu = cpu };
	struct ekiden_outcome outcome;

	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_cpu_event(&event, &outcome);
	carry_out(event.cpu, &outcome);
}

OPS(cpu_online) void BPF_PROG(ekiden_cpu_online, s32 cpu)
{
	tell_cpu(EKIDEN_CPU_ONLINE, cpu);
}

OPS(cpu_offline) void BPF_PROG(ekiden_cpu_offline, s32 cpu)
{
	tell_cpu(EKIDEN_CPU_OFFLINE, cpu);
}

OPS(cgroup_init) s32 BPF_PROG(ekiden_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	struct cgroup *parent = above(cgrp);
	bool delegated;
	u32 i;

	if (!parent) {
		tell_group(EKIDEN_GROUP_CREATE, cgrp, 0, 0, 0);
		return 0;
	}
	delegated = is_delegated(parent);
	bpf_for(i, 0, ABOVE_MOST) {
		if (!parent || tell_group(EKIDEN_GROUP_CREATE, cgrp, parent->kn->id, delegated, 0) != EKIDEN_INVALID)
			break;
		parent = next_above(parent, i + 1);
	}
	tell_group(EKIDEN_GROUP_WEIGHT, cgrp, args->weight, 0, 0);
	if (is_idle_group(cgrp))
		tell_group(EKIDEN_GROUP_IDLE, cgrp, true, 0, 0);
	if (bpf_core_field_exists(args->bw_quota_us))
		tell_limit(cgrp, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);
	return 0;
}

OPS(cgroup_exit) void BPF_PROG(ekiden_cgroup_exit, struct cgroup *cgrp)
{
	tell_group(EKIDEN_GROUP_DESTROY, cgrp, 0, 0, 0);
}

OPS(cgroup_move) void BPF_PROG(ekiden_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	tell_move(p, to);
}

OPS(cgroup_set_weight) void BPF_PROG(ekiden_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	tell_group(EKIDEN_GROUP_WEIGHT, cgrp, weight, 0, 0);
}

OPS(cgroup_set_bandwidth)
void BPF_PROG(ekiden_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	tell_limit(cgrp, period_us, quota_us, burst_us);
}

OPS(cgroup_set_idle) void BPF_PROG(ekiden_cgroup_set_idle, struct cgroup *cgrp, bool idle)
{
	tell_group(EKIDEN_GROUP_IDLE, cgrp, idle, 0, 0);
}

/*
 * A timer went off, a hint came or another policy took over, outside of every operation of sched_ext; this program has what
 * the policy wants carried out.
 */
SEC("fentry/ekiden_timer_fired") int BPF_PROG(ekiden_on_timer, u64 kicks)
{
	if (kicks)
		kick(kicks);
	return 0;
}

OPS_SLEEPABLE(init) s32 BPF_PROG(ekiden_init)
{
	return make_beyond_queues() ?: ekiden_attach();
}

OPS(exit) void BPF_PROG(ekiden_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(exit_reason, sizeof(exit_reason), info->reason);
	bpf_probe_read_kernel_str(exit_message, sizeof(exit_message), info->msg);
	ekiden_detach();
}

/* The loader leaves out `quiescent` if it can, and what the kernel does not have, and gives the scheduler its name and flags. */
SEC(".struct_ops.link")
struct sched_ext_ops ekiden_ops = {
	.select_cpu = (void *)ekiden_select_cpu,
	.enqueue = (void *)ekiden_enqueue,
	.dispatch = (void *)ekiden_dispatch,
	.tick = (void *)ekiden_tick,
	.quiescent = (void *)ekiden_quiescent,
	.yield = (void *)ekiden_yield,
	.set_weight = (void *)ekiden_set_weight,
	.set_cpumask = (void *)ekiden_set_cpumask,
	.cpu_online = (void *)ekiden_cpu_online,
	.cpu_offline = (void *)ekiden_cpu_offline,
	.cgroup_init = (void *)ekiden_cgroup_init,
	.cgroup_exit = (void *)ekiden_cgroup_exit,
	.cgroup_move = (void *)ekiden_cgroup_move,
	.cgroup_set_weight = (void *)ekiden_cgroup_set_weight,
	.cgroup_set_bandwidth = (void *)ekiden_cgroup_set_bandwidth,
	.cgroup_set_idle = (void *)ekiden_cgroup_set_idle,
	.enable = (void *)ekiden_enable,
	.disable = (void *)ekiden_disable,
	.init = (void *)ekiden_init,
	.exit = (void *)ekiden_exit,
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED,
	.timeout_ms = 30000,
	.name = "ekiden",
};
