// SPDX-License-Identifier: GPL-2.0-only
/*
 * The sched_ext half of the agent host: policies run in a process, and no module is needed. What happens to tasks goes to the
 * agent as messages in a ring that both sides have mapped; what it decides comes back in batches, and is carried out where the
 * CPU looks for work. No task is chosen here: hosts/agent is the other half, docs/agent.md has the messages.
 *
 * A task has a slot in a table that both sides have mapped, whose number is kept in p->scx.dsq_vtime, 0 for none. The slot has
 * one word with the number of the newest message about the task and where it stands. Every decision names the number that it
 * rests on, and counts only as long as that is the newest.
 *
 * The agent's thread does not sleep when it has nothing to do: it gives way, and its queue is nowhere until a CPU that has
 * something for it takes it. So it is called where a CPU looks for work, without a wake-up and mostly on that CPU.
 */
#include "agent_decide.h"
#include "agent_groups.h"
#include "agent_watch.h"

char _license[] SEC("license") = "GPL";

static __always_inline void note_allowed(struct task *t, struct task_struct *p)
{
	/* As a number: the verifier does not let us step through an array that a pointer of the kernel's leads to. */
	u64 bits = 0;
	u32 i;

	bpf_core_read(&bits, sizeof(bits), &p->cpus_ptr);
	for (i = 0; i < WORDS; i++) {
		u64 word = 0;

		if (i < (nr_cpus + 63) / 64)
			bpf_probe_read_kernel(&word, sizeof(word), (void *)(bits + i * sizeof(word)));
		t->allowed[i] = word;
	}
}

static __always_inline u32 free_slot(void)
{
	u32 slot = 0;

	if (!bpf_map_pop_elem(&freed, &slot))
		return slot;
	if (READ(control.slots) >= slots_most)
		return 0;
	slot = __sync_fetch_and_add(&control.slots, 1) + 1;
	return slot <= slots_most ? slot : 0;
}

/* The task gets a slot, if there is one. */
static __noinline int take_in(struct task_struct *p)
{
	u32 slot = free_slot();
	struct task *t;
	u64 seq;

	t = slot ? get_task(slot) : NULL;
	if (!t)
		slot = 0;
	if (bpf_ksym_exists(scx_bpf_task_set_dsq_vtime))
		scx_bpf_task_set_dsq_vtime(p, slot);
	else
		p->scx.dsq_vtime = slot;
	if (!t)
		return 0;
	t->pid = p->pid;
	t->nice = (s32)p->static_prio - 120;
	t->is_idle_policy = p->policy == SCHED_IDLE_POLICY;
	t->select = 0;
	t->group = slot_of(group_of(p));
	t->utime = p->utime;
	note_allowed(t, p);
	seq = now_is(t, ASLEEP);
	t->began = seq;
	tell_of(NEW, p, t, seq, t->is_idle_policy, t->group);
	return slot;
}

OPS(enable) void BPF_PROG(agent_enable, struct task_struct *p)
{
	if (is_agents(p)) {
		if (bpf_ksym_exists(scx_bpf_task_set_dsq_vtime))
			scx_bpf_task_set_dsq_vtime(p, 0);
		else
			p->scx.dsq_vtime = 0;
	} else if (!take_in(p)) {
		__sync_fetch_and_add(&control.beyond, 1);
	}
}

OPS(disable) void BPF_PROG(agent_disable, struct task_struct *p)
{
	u32 slot = p->scx.dsq_vtime;
	struct task *t = task_of(p);
	u64 seq;

	if (!t) {
		if (!is_agents(p))
			__sync_fetch_and_add(&control.beyond, -1);
		return;
	}
	seq = now_is(t, FREE);
	tell_of(p->__state & TASK_DEAD ? DEAD : DEPARTED, p, t, seq, 0, 0);
	if (bpf_ksym_exists(scx_bpf_task_set_dsq_vtime))
		scx_bpf_task_set_dsq_vtime(p, 0);
	else
		p->scx.dsq_vtime = 0;
	/* If that fails, there is room for one less. */
	bpf_map_push_elem(&freed, &slot, 0);
}

/*
 * Where nothing waits and a CPU has nothing to run, there is nothing to decide for a policy that leaves it to the kernel where a
 * task goes: the task runs at once, and the agent hears of it with what happens next. Whether there is time for a task whose group
 * has a limit, the agent says.
 */
static __always_inline bool may_place(struct task *t, struct cpu *c)
{
	return READ(control.may_place) && c && READ(c->looks) && !READ(c->next) && !some_wait() && !is_limited(t);
}

/* The CPU was idle, and is taken for this task. */
static __always_inline void place(struct task_struct *p, struct task *t, s32 cpu, struct cpu *c, u64 enq_flags)
{
	c->looks = 0;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, READ(control.slice_ns) ?: slice_default_ns, enq_flags);
	tell_on(cpu, RUNNABLE, p, t, now_is(t, RUNS), WOKEN | PLACED, 0);
}

OPS(select_cpu) s32 BPF_PROG(agent_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	struct task *t = task_of(p);
	struct cpu *c;

	if (!t)
		return cpu;
	c = get_cpu(cpu);
	if (is_idle && c && may_place(t, c)) {
		place(p, t, cpu, c, 0);
		return cpu;
	}
	t->select = (wake_flags & 0xffff) | (bpf_get_smp_processor_id() + 1) << 16;
	t->previous = prev_cpu;
	return cpu;
}

/* Threads of the agent's process go before everything else. The one that decides is throttled if it has nothing to do. */
static __noinline int enqueue_agent(struct task_struct *p, u64 enq_flags)
{
	s32 cpu = cpu_of(p);

	if (p->pid != control.tid || !READ(control.yields)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, p->pid == control.tid ? SCX_SLICE_INF : SCX_SLICE_DFL,
				   enq_flags | SCX_ENQ_PREEMPT);
		/* The process may be ending, for which each of its threads has to run. */
		if (p->pid != control.tid && enq_flags & SCX_ENQ_WAKEUP && READ(control.throttled)) {
			control.due = 1;
			call(cpu, false);
		}
		return 0;
	}
	/* A message that is written after this finds it throttled. */
	control.yields = 0;
	__sync_lock_test_and_set(&control.throttled, 1);
	/* A task that was just decided for this CPU is not made to leave it again. */
	if (pending())
		call(cpu, enq_flags & SCX_ENQ_LAST);
	return 0;
}

OPS(enqueue) void BPF_PROG(agent_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task *t = task_of(p);
	struct cpu *c = get_cpu(cpu_of(p));
	u32 slot, flags = 0;
	u64 seq, arg;

	if (!t) {
		if (is_agents(p)) {
			enqueue_agent(p, enq_flags);
			return;
		}
		/* There may be room by now. */
		slot = take_in(p);
		t = slot ? get_task(slot) : NULL;
		if (!t) {
			wait_beyond(p, enq_flags);
			return;
		}
		__sync_fetch_and_add(&control.beyond, -1);
	}
	/* ops.select_cpu was not asked: the task may run on one CPU only. */
	if (enq_flags & SCX_ENQ_WAKEUP && !t->select && c && c->presence != LEAVES && may_place(t, c) &&
	    scx_bpf_test_and_clear_cpu_idle(cpu_of(p))) {
		place(p, t, cpu_of(p), c, enq_flags);
		return;
	}
	slot = p->scx.dsq_vtime;
	if (enq_flags & SCX_ENQ_WAKEUP) {
		flags |= WOKEN;
	} else if (c && c->at_user == slot) {
		flags |= AT_USER;
		c->at_user = 0;
	}
	if (t->select)
		flags |= SELECTED;
	if (c && c->leaving == slot) {
		flags |= LEAVES_CPU;
		c->leaving = 0;
		c->looks = 1;
	}
	arg = t->select | (u64)t->previous << 32;
	t->select = 0;
	seq = now_is(t, WAITS);
	tell_of(RUNNABLE, p, t, seq, flags, arg);
	if (flags & LEAVES_CPU) {
		/* Its CPU has the agent, or that one is at work. */
		if (READ(control.throttled))
			call(t->cpu, true);
	} else if (!c || !c->looks) {
		/* An idle CPU is woken up by the kernel, and takes the agent. */
		call(t->cpu, READ(control.eager));
	} else if (!(enq_flags & SCX_ENQ_WAKEUP)) {
		call(t->cpu, true);
	}
}

/*
 * Tells the agent when this CPU begins to leave. Long before it is offline the kernel pushes every task away that comes
 * there, to where no CPU has asked for it. A policy that still took tasks to this CPU would keep those waiting that were to
 * run where they land, for as long as it takes to leave; and leaving waits for tasks in RCU's read-side critical sections.
 */
static __always_inline void note_presence(s32 cpu, struct cpu *c)
{
	struct rq *rq = bpf_this_cpu_ptr(&runqueues);
	/* While nothing else is under way here, only a CPU that leaves has one: balance_push(). */
	bool leaves = rq->balance_callback;

	if (leaves && c->presence != LEAVES && c->presence != LEFT) {
		c->presence = LEAVES;
		tell_cpu(OFFLINE, cpu);
	} else if (!leaves && c->presence == LEAVES) {
		c->presence = CAME;
		tell_cpu(ONLINE, cpu);
	}
}

OPS(dispatch) void BPF_PROG(agent_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu *c = get_cpu(cpu);
	bool could_go_on = prev && prev->scx.flags & SCX_TASK_QUEUED;
	u32 slot = 0;

	if (!c)
		return;
	c->leaving = 0;
	note_presence(cpu, c);
	/* Tasks without a slot have a part of each CPU. */
	if (READ(control.beyond) > 0 && !(++c->turns & 7) && run_beyond(cpu))
		return;
	if (take_decided(cpu))
		return;
	if (could_go_on) {
		slot = prev->scx.dsq_vtime;
		if (!slot && prev->pid == control.tid) {
			if (!c->looks) {
				c->looks = 1;
				tell_cpu(LOOKS, cpu);
			}
			/* It was made to give way, or there is more to do by now. */
			if (!READ(control.yields) || pending()) {
				control.yields = 0;
				set_slice(prev, SCX_SLICE_INF);
				return;
			}
		} else if (slot) {
			/* The kernel puts it on its queue, which tells the agent that the CPU looks for work, too. */
			c->leaving = slot;
			take_agent(cpu);
			return;
		}
	} else {
		if (!c->looks) {
			c->looks = 1;
			tell_cpu(LOOKS, cpu);
		}
		if (pending() && (some_wait() || READ(control.called)) && take_agent(cpu))
			return;
	}
	if (READ(control.beyond) > 0 && run_beyond(cpu))
		return;
	if (could_go_on && !slot && prev->pid != control.tid)
		set_slice(prev, BEYOND_SLICE_NS);
}

OPS(quiescent) void BPF_PROG(agent_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task *t = task_of(p);

	/* Everything else comes back at once, through enqueue, or leaves through disable. */
	if (t && deq_flags & SCX_DEQ_SLEEP)
		tell_of(BLOCKED, p, t, now_is(t, ASLEEP), 0, 0);
}

OPS(tick) void BPF_PROG(agent_tick, struct task_struct *p)
{
	struct task *t = task_of(p);

	if (!t) {
		if (p->pid == control.tid)
			note_agents_tick(p);
		return;
	}
	notes_mode(p, t);
	if (!READ(control.wants_ticks))
		return;
	tell_of(TICKED, p, t, READ(t->word) >> 8, 0, 0);
	call(t->cpu, true);
}

OPS(yield) bool BPF_PROG(agent_yield, struct task_struct *from, struct task_struct *to)
{
	struct task *t = task_of(from);

	/* A yield to a particular task is not supported, and says so. */
	if (to)
		return false;
	if (t) {
		tell_of(YIELDED, from, t, READ(t->word) >> 8, 0, 0);
	} else if (from->pid == control.tid) {
		/* What it has decided last goes out with this system call. */
		if (READ(control.count))
			fire_all(bpf_get_smp_processor_id());
		control.yields = 1;
	}
	set_slice(from, 0);
	return false;
}

OPS(set_weight) void BPF_PROG(agent_set_weight, struct task_struct *p, u32 weight)
{
	struct task *t = task_of(p);

	if (!t)
		return;
	t->nice = (s32)p->static_prio - 120;
	t->is_idle_policy = p->policy == SCHED_IDLE_POLICY;
	tell_of(RENICED, p, t, has_changed(t), 0, t->is_idle_policy);
}

OPS(set_cpumask) void BPF_PROG(agent_set_cpumask, struct task_struct *p, const struct cpumask *cpumask)
{
	struct task *t = task_of(p);

	if (!t)
		return;
	note_allowed(t, p);
	tell_of(MOVED, p, t, has_changed(t), 0, 0);
}

OPS(cpu_online) void BPF_PROG(agent_cpu_online, s32 cpu)
{
	struct cpu *c = get_cpu(cpu);

	if (c) {
		c->looks = 0;
		if (c->presence == LEFT)
			__sync_fetch_and_add(&control.cpus_left, -1);
		c->presence = CAME;
	}
	tell_cpu(ONLINE, cpu);
}

OPS(cpu_offline) void BPF_PROG(agent_cpu_offline, s32 cpu)
{
	struct cpu *c = get_cpu(cpu);
	u64 slot;

	if (c) {
		c->presence = LEFT;
		__sync_fetch_and_add(&control.cpus_left, 1);
		slot = __sync_lock_test_and_set(&c->next, 0);
		if (slot)
			refuse(cpu, slot, c->seq);
	}
	tell_cpu(OFFLINE, cpu);
	call(cpu, false);
}

/* What the agent has decided, a batch at a time. */
SEC("syscall") int agent_shoot(void *ctx)
{
	return fire_all(bpf_get_smp_processor_id());
}

/* The agent wants to be called in this many nanoseconds. */
SEC("syscall") int agent_set_alarm(void *ctx)
{
	struct timer *alarm = get_timer(ALARM);

	if (alarm)
		bpf_timer_start(&alarm->timer, READ(control.alarm_ns), 0);
	return 0;
}

/* The policy is gone, or the agent cannot go on. */
SEC("syscall") int agent_give_up(void *ctx)
{
	static char format[] = "%s";
	unsigned long long data[1] = { (unsigned long long)fault_text };

	scx_bpf_error_bstr(format, data, sizeof(data));
	return 0;
}

OPS_SLEEPABLE(init) s32 BPF_PROG(agent_init)
{
	struct timer *watch = get_timer(WATCH), *alarm = get_timer(ALARM);
	s32 ret = make_beyond_queues();

	if (ret || !watch || !alarm)
		return ret;
	bpf_timer_init(&watch->timer, &timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&watch->timer, on_watch);
	bpf_timer_init(&alarm->timer, &timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&alarm->timer, on_alarm);
	control.watch_since_ns = bpf_ktime_get_ns();
	return bpf_timer_start(&watch->timer, WATCH_NS, 0);
}

OPS(exit) void BPF_PROG(agent_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(exit_reason, sizeof(exit_reason), info->reason);
	bpf_probe_read_kernel_str(exit_message, sizeof(exit_message), info->msg);
	control.ended = 1;
	bpf_ringbuf_output(&end, exit_reason, 1, 0);
}

/* The agent gives the scheduler its name, and leaves out what the kernel does not have. */
SEC(".struct_ops.link")
struct sched_ext_ops agent_ops = {
	.select_cpu = (void *)agent_select_cpu,
	.enqueue = (void *)agent_enqueue,
	.dispatch = (void *)agent_dispatch,
	.tick = (void *)agent_tick,
	.quiescent = (void *)agent_quiescent,
	.yield = (void *)agent_yield,
	.set_weight = (void *)agent_set_weight,
	.set_cpumask = (void *)agent_set_cpumask,
	.cpu_online = (void *)agent_cpu_online,
	.cpu_offline = (void *)agent_cpu_offline,
	.cgroup_init = (void *)agent_cgroup_init,
	.cgroup_exit = (void *)agent_cgroup_exit,
	.cgroup_move = (void *)agent_cgroup_move,
	.cgroup_set_weight = (void *)agent_cgroup_set_weight,
	.cgroup_set_bandwidth = (void *)agent_cgroup_set_bandwidth,
	.cgroup_set_idle = (void *)agent_cgroup_set_idle,
	.enable = (void *)agent_enable,
	.disable = (void *)agent_disable,
	.init = (void *)agent_init,
	.exit = (void *)agent_exit,
	/* Tasks that exit, or that may not move for a moment, go on without the agent. */
	.flags = SCX_OPS_ENQ_LAST,
	.timeout_ms = 30000,
	.name = "ekiden_agent",
};
