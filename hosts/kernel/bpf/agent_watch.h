/* SPDX-License-Identifier: GPL-2.0-only */
/* The watchdog: an agent that does not answer is given up, and the kernel takes every task back to its own scheduler. */
#ifndef EKIDEN_BPF_AGENT_WATCH_H
#define EKIDEN_BPF_AGENT_WATCH_H

#include "agent_decide.h"

/*
 * One that sleeps at work waits for something that does not come; one that runs, and as many whole ticks as there are in
 * that time have seen it in user mode, is in a loop. In the kernel it may wait for another CPU, whose processor a hypervisor
 * has taken.
 */
#define STOPPED_NS 15000000ULL
#define SLEEPS_NS 30000000ULL
#define LOOPS_NS 25000000ULL
#define LATE_NS 1000000000ULL
/*
 * The kernel has just counted the tick for user mode, if it has found the agent there. One that is early or late is not
 * counted: a hypervisor has taken the processor of this CPU for a part of the time. The count is a sample of the time
 * for which the agent had one.
 */
static __always_inline void note_agents_tick(struct task_struct *agent)
{
	u64 now_ns = bpf_ktime_get_ns(), apart_ns = now_ns - control.watch_tick_ns;

	control.watch_tick_ns = now_ns;
	if (agent->utime == control.watch_utime)
		return;
	control.watch_utime = agent->utime;
	if (apart_ns >= tick_ns - tick_ns / 4 && apart_ns <= tick_ns + tick_ns / 4)
		control.watch_ticks++;
}

/* The agent does not answer: the kernel takes every task back to its own scheduler at once. */
static __noinline int give_up(u32 why, u64 ms)
{
	static char stopped[] = "the agent has not answered for %llu ms: it was stopped";
	static char gone[] = "the agent has ended, and has not answered for %llu ms";
	static char loops[] = "the agent has not answered for %llu ms: a call of the policy takes too long, or does not end";
	static char sleeps[] = "the agent has not answered for %llu ms: it sleeps, as if it waited for a task";
	static char late[] = "the agent has had no CPU for %llu ms";
	unsigned long long data[1] = { ms };

	if (why == 0)
		scx_bpf_error_bstr(stopped, data, sizeof(data));
	else if (why == 1)
		scx_bpf_error_bstr(gone, data, sizeof(data));
	else if (why == 2)
		scx_bpf_error_bstr(loops, data, sizeof(data));
	else if (why == 3)
		scx_bpf_error_bstr(sleeps, data, sizeof(data));
	else
		scx_bpf_error_bstr(late, data, sizeof(data));
	return 0;
}

/* Looks whether the agent gets on with what it was told; 1 if it does not. */
static __noinline int look_at_agent(u64 now_ns)
{
	u64 since_ns = READ(control.watch_since_ns);
	/* Another CPU may have called it since. */
	u64 age_ns = now_ns > since_ns ? now_ns - since_ns : 0;
	struct task_struct *p;
	bool is_queued, runs, is_exiting, is_stopped;

	p = bpf_task_from_pid(control.tid);
	if (!p) {
		give_up(1, age_ns / 1000000);
		return 1;
	}
	is_queued = p->on_rq;
	runs = p->on_cpu;
	is_exiting = p->flags & PF_EXITING;
	is_stopped = p->__state & TASK_STOPPED_OR_TRACED;
	bpf_task_release(p);
	if (is_exiting) {
		give_up(1, age_ns / 1000000);
		return 1;
	}
	if (!is_queued && age_ns >= (is_stopped ? STOPPED_NS : SLEEPS_NS)) {
		give_up(is_stopped ? 0 : 3, age_ns / 1000000);
		return 1;
	}
	if (runs && (age_ns >= LATE_NS || (age_ns >= LOOPS_NS && READ(control.watch_ticks) >= loop_ticks))) {
		give_up(2, age_ns / 1000000);
		return 1;
	}
	if (is_queued && !runs && age_ns >= LATE_NS) {
		give_up(4, age_ns / 1000000);
		return 1;
	}
	return 0;
}

/* Whether no CPU runs a task. What the agent has not heard of is over then, or waits for it, for which it is called in any case. */
static __noinline bool machine_idles(void)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask(), *idle = scx_bpf_get_idle_cpumask();
	bool idles = bpf_cpumask_subset(online, idle);

	scx_bpf_put_idle_cpumask(idle);
	scx_bpf_put_cpumask(online);
	return idles;
}

/* The agent has nothing to do, or only messages on which nothing waits. Returns when the watchdog looks again. */
static __noinline u32 look_at_messages(u32 pace, u64 head, u64 now_ns)
{
	bool is_new = head != control.watch_head, has_work = pending(), some_are_there = (s64)READ(control.waiting) > 0;
	bool is_wanted = some_are_there || READ(control.called) || READ(control.due);
	bool idles = !is_wanted && machine_idles();

	control.watch_head = head;
	/* Once in a while it looks after tasks that wait for long. */
	if ((has_work || some_are_there) && now_ns - control.watch_heard_ns >= (idles ? WATCH_IDLE_NS : WATCH_LATE_NS))
		control.due = 1;
	else if (is_new && pace == SOON)
		return has_work ? LATER : SOON;
	else if (!has_work || idles) {
		if (!has_work && !some_are_there)
			control.watch_heard_ns = now_ns;
		return has_work && !READ(control.cpus_left) ? IDLE : LATE;
	}
	control.watch_heard_ns = now_ns;
	call(bpf_get_smp_processor_id(), true);
	return SOON;
}

static __always_inline u64 after(u32 pace)
{
	return pace == SOON ? WATCH_NS : pace == LATER ? WATCH_LATER_NS : pace == LATE ? WATCH_LATE_NS : WATCH_IDLE_NS;
}

static int on_watch(void *map, int *key, struct timer *watch)
{
	u32 pace = __sync_lock_test_and_set(&control.watch_pace, SOON), next = SOON;
	u64 now_ns = bpf_ktime_get_ns(), beat = READ(control.beat), head = READ(control.head);
	bool is_throttled = READ(control.throttled);

	if (READ(control.cpus_left))
		take_back();
	/* One that is not throttled is at work, or on its way there; where no CPU has hurried this look, it was called just now. */
	if (beat != control.watch_beat || is_throttled || pace != SOON) {
		control.watch_beat = beat;
		control.watch_since_ns = now_ns;
		control.watch_ticks = 0;
		if (is_throttled)
			next = look_at_messages(pace, head, now_ns);
		else
			control.watch_heard_ns = now_ns;
	} else if (look_at_agent(now_ns)) {
		return 0;
	}
	bpf_timer_start(&watch->timer, after(next), 0);
	if (next != SOON) {
		__sync_lock_test_and_set(&control.watch_pace, next);
		/* What has come after this hurries it; what came just before did not. */
		if (!READ(control.throttled))
			hurry_watch(SOON);
		else if (READ(control.head) != head)
			hurry_watch(LATER);
	}
	return 0;
}

static int on_alarm(void *map, int *key, struct timer *alarm)
{
	control.due = 1;
	call(bpf_get_smp_processor_id(), true);
	return 0;
}

#endif
