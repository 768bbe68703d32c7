/* SPDX-License-Identifier: GPL-2.0-only */
/* How the agent hears of things: messages in its ring, and how it is called where a CPU looks for work. */
#ifndef EKIDEN_BPF_AGENT_TELL_H
#define EKIDEN_BPF_AGENT_TELL_H

#include "agent_shared.h"

/*
 * When the watchdog looks again: soon while the agent is at work, or may be called any moment; later where it has messages on which nothing
 * waits; late where it has none, until there is one; and later still where the machine idles, until a task waits or a message is lost. A CPU
 * whose task has used up its slice looks for work, and the agent is called there.
 */
enum pace {
	SOON = 0,
	LATER = 1,
	LATE = 2,
	IDLE = 3,
};

#define WATCH_NS 5000000ULL
#define WATCH_LATER_NS 95000000ULL
#define WATCH_LATE_NS 1000000000ULL
#define WATCH_IDLE_NS 4000000000ULL

static __always_inline bool pending(void)
{
	return READ(control.head) != READ(control.tail) || READ(control.due);
}

/* Whether a task waits for a decision of the policy, and its group has CPU time left. */
static __always_inline bool some_wait(void)
{
	return READ(control.waiting) > (s64)READ(control.held);
}

/*
 * Has it look no later than at this pace. A start may wait for an interrupt of its CPU, which one that leaves has no more; it comes soon
 * enough without that.
 */
static __noinline int hurry_watch(u32 pace)
{
	struct timer *watch = get_timer(WATCH);
	u32 before = READ(control.watch_pace);

	if (!watch || before <= pace || leaves())
		return 0;
	if (pace == LATER) {
		if (__sync_val_compare_and_swap(&control.watch_pace, before, LATER) != before)
			return 0;
		bpf_timer_start(&watch->timer, WATCH_LATER_NS, 0);
		/* Another CPU may have wanted it sooner just now. */
		if (READ(control.watch_pace) != SOON)
			return 0;
	} else {
		/* It has had nothing to do until now. */
		control.watch_since_ns = bpf_ktime_get_ns();
		control.watch_ticks = 0;
		if (__sync_lock_test_and_set(&control.watch_pace, SOON) == SOON)
			return 0;
	}
	bpf_timer_start(&watch->timer, WATCH_NS, 0);
	return 0;
}

/* Has the agent called on an idle CPU, or on this one if none is idle and that may be. */
static __noinline int call(s32 here, bool may_preempt)
{
	const struct cpumask *online;
	s32 idle;

	if (!READ(control.throttled) || leaves())
		return 0;
	control.called = 1;
	online = scx_bpf_get_online_cpumask();
	idle = scx_bpf_pick_idle_cpu(online, 0);
	scx_bpf_put_cpumask(online);
	if (idle >= 0)
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	else if (may_preempt)
		scx_bpf_kick_cpu(here, SCX_KICK_PREEMPT);
	return 0;
}

static __noinline int tell(u32 kind, u32 cpu, u32 slot, struct message *what)
{
	struct message *message;
	u64 number;
	u32 key;

	if (READ(control.head) - READ(control.tail) + SLACK > ring_mask) {
		__sync_fetch_and_add(&control.lost, 1);
		hurry_watch(LATER);
		return 0;
	}
	number = __sync_fetch_and_add(&control.head, 1);
	if (READ(control.watch_pace) == LATE || (READ(control.watch_pace) == IDLE && some_wait()))
		hurry_watch(LATER);
	key = number & ring_mask;
	message = bpf_map_lookup_elem(&ring, &key);
	if (!message || !what)
		return 0;
	message->kind = kind;
	message->cpu = cpu;
	message->slot = slot;
	message->flags = what->flags;
	message->seq = what->seq;
	message->runtime_ns = what->runtime_ns;
	message->arg = what->arg;
	message->pid = what->pid;
	message->nice = what->nice;
	/* Orders all of it, so that the agent sees it whole. */
	__sync_lock_test_and_set(&message->number, number + 1);
	if (!(number & 63) && number - READ(control.tail) > ring_mask / 2)
		call(bpf_get_smp_processor_id(), true);
	return 0;
}

static __always_inline void tell_cpu(u32 kind, u32 cpu)
{
	struct message what = {};

	tell(kind, cpu, 0, &what);
}

/* The task stands elsewhere from now on, and what was decided before counts no more. */
static __always_inline u64 now_is(struct task *t, u64 state)
{
	u64 seq = (READ(t->word) >> 8) + 1;
	u64 old = __sync_lock_test_and_set(&t->word, seq << 8 | state) & 0xff;

	if (old != state && (old == WAITS || state == WAITS))
		__sync_fetch_and_add(&control.waiting, state == WAITS ? 1 : -1);
	return seq;
}

/* Something that decisions go by has changed for a task: one that was made before does not count any more. */
static __always_inline u64 has_changed(struct task *t)
{
	u64 state = READ(t->word) & 0xff;

	return now_is(t, state == DECIDED ? WAITS : state);
}

static __always_inline void tell_on(u32 cpu, u32 kind, struct task_struct *p, struct task *t, u64 seq, u32 flags, u64 arg)
{
	struct message what = {};

	what.flags = flags;
	what.seq = seq;
	what.runtime_ns = p->se.sum_exec_runtime;
	what.arg = arg;
	what.pid = p->pid;
	what.nice = (s32)p->static_prio - 120;
	t->runtime_ns = what.runtime_ns;
	t->cpu = cpu;
	tell(kind, cpu, p->scx.dsq_vtime, &what);
}

static __always_inline void tell_of(u32 kind, struct task_struct *p, struct task *t, u64 seq, u32 flags, u64 arg)
{
	tell_on(cpu_of(p), kind, p, t, seq, flags, arg);
}

/* Takes the agent if it is throttled, for this CPU to run. Not outside of ops.dispatch and ops.enqueue. */
static __noinline int take_agent(s32 cpu)
{
	struct task_struct *p;

	if (!READ(control.throttled) || __sync_val_compare_and_swap(&control.throttled, 1, 0) != 1)
		return 0;
	control.called = 0;
	hurry_watch(SOON);
	p = bpf_task_from_pid(control.tid);
	if (!p)
		return 0;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_INF, SCX_ENQ_PREEMPT);
	bpf_task_release(p);
	return 1;
}

#endif
