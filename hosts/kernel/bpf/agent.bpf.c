// SPDX-License-Identifier: GPL-2.0-only
/*
 * The sched_ext half of the agent host: policies run in a process, and no module is needed. What happens to tasks goes to the
 * agent as messages in a ring that both sides have mapped; what it decides comes back in batches, and is carried out where the
 * CPU looks for work. Nothing here decides anything: hosts/agent is the other half, docs/agent.md says who tells whom what.
 *
 * A task has a slot in a table that both sides have mapped, whose number is kept in p->scx.dsq_vtime, 0 for none. The slot has
 * one word with the number of the newest message about the task and where it stands. Every decision names the number that it
 * rests on, and counts only as long as that is the newest.
 *
 * The agent's thread does not sleep when it has nothing to do: it gives way, and its queue is nowhere until a CPU that has
 * something for it takes it. So it is called where a CPU looks for work, without a wake-up and mostly on that CPU.
 */
#include "beyond.h"

char _license[] SEC("license") = "GPL";

#define BPF_MAP_TYPE_STACK 23
#define BPF_F_MMAPABLE (1U << 10)
#define CLOCK_MONOTONIC 1
#define READ(x) (*(volatile typeof(x) *)&(x))

struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
void bpf_task_release(struct task_struct *p) __ksym;

/* The kinds of messages; hosts/agent/src/wire.rs has the same. */
enum kind {
	NEW = 1,
	RUNNABLE = 2,
	BLOCKED = 3,
	YIELDED = 4,
	DEAD = 5,
	DEPARTED = 6,
	LOOKS = 7,
	REFUSED = 8,
	TICKED = 9,
	RENICED = 10,
	MOVED = 11,
	ONLINE = 12,
	OFFLINE = 13,
};

/* Flags of RUNNABLE: it slept; ops.select_cpu was asked before; its CPU looks for work, and this was what ran there; it runs already. */
#define WOKEN 1
#define SELECTED 2
#define LEAVES_CPU 4
#define PLACED 8

struct message {
	/* Its number and one more; written last. */
	u64 number;
	u32 kind;
	u32 cpu;
	u32 slot;
	u32 flags;
	u64 seq;
	u64 runtime_ns;
	u64 arg;
	u32 pid;
	s32 nice;
	u64 spare;
};

/* Where a task stands, the lowest byte of its word; the number of the newest message is above. */
enum state {
	FREE = 0,
	ASLEEP = 1,
	WAITS = 2,
	DECIDED = 3,
	RUNS = 4,
};

/* 256 CPUs. */
#define WORDS 4

struct task {
	u64 word;
	/* The number of the message by which it came. */
	u64 began;
	u64 runtime_ns;
	u32 pid;
	u32 cpu;
	s32 nice;
	u32 is_idle_policy;
	/* From ops.select_cpu to ops.enqueue. */
	u32 select;
	u32 previous;
	u64 allowed[WORDS];
	u64 spare[6];
};

struct cpu {
	/* The slot of the task that was decided for it, 0 for none; what follows belongs to that. */
	u64 next;
	u64 seq;
	u64 slice_ns;
	/* The agent knows that it looks for work. */
	u32 looks;
	/* The slot of the task that has to leave it, until the kernel puts that on its queue. */
	u32 leaving;
	u32 turns;
	u32 spare[7];
};

/* What becomes of a decision. */
enum result {
	DONE = 1,
	DONE_HERE = 2,
	STALE = 3,
	BUSY = 4,
};

/* A decision. Without a task, its CPU is only to look for work again. */
struct shot {
	u32 cpu;
	u32 slot;
	u64 seq;
	u64 slice_ns;
	u32 result;
	u32 spare;
};

struct control {
	/* Written by the agent: messages that it has taken, and a number that changes as long as it gets on. */
	u64 tail;
	u64 beat;
	u32 tid;
	u32 tgid;
	/* Of the batch. */
	u32 count;
	/* Whether a wake-up for a CPU that is busy has the agent called at once. */
	u32 eager;
	u64 alarm_ns;
	/* What a task gets that is placed without it. */
	u64 slice_ns;
	u64 pad[2];
	/* Written here: messages that were begun, and those that there was no room for. */
	u64 head;
	u64 lost;
	/* Tasks that wait and are not decided for. */
	s64 waiting;
	/* The agent has nothing to do, and is nowhere until a CPU takes it. */
	u32 parked;
	u32 yields;
	/* It is wanted, if only because of the time. */
	u32 called;
	u32 due;
	u32 ended;
	u32 slots;
	u64 pad2[2];
	/* Tasks without a slot. */
	s64 beyond;
	/* What the watch saw last. */
	u64 watch_beat;
	u64 watch_since_ns;
	u64 watch_head;
	u32 watch_ticks;
	u32 watch_is_slow;
	u32 watch_rounds;
	u32 pad3[5];
};

struct control control;

char exit_reason[64];
char exit_message[256];
/* Why the agent gives up, in its words. */
char fault_text[256];

const volatile u64 ring_mask;
const volatile u32 slots_most;
const volatile u32 nr_cpus;
const volatile bool wants_ticks;
/* Whether the policy leaves it to the kernel where a task goes. */
const volatile bool may_place;
const volatile u64 slice_default_ns = SCX_SLICE_DFL;

/* Records that other CPUs may write while one is looked for. */
#define SLACK 512

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct message);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct shot);
} shots SEC(".maps");

/* Slots that were used before. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 1);
	__uint(value_size, sizeof(u32));
} freed SEC(".maps");

/* A value of a map may have one. */
struct timer {
	struct bpf_timer timer;
};

#define WATCH 0
#define ALARM 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct timer);
} timers SEC(".maps");

/* How often the watch looks while there is something to do, and else. */
#define WATCH_NS 5000000ULL
#define WATCH_SLOW_NS 1000000000ULL
/* One that sleeps at work waits for something that does not come; one that runs, and ticks have seen it, is in a loop. */
#define STOPPED_NS 15000000ULL
#define SLEEPS_NS 30000000ULL
#define LOOPS_NS 25000000ULL
#define LOOPS_TICKS 4
#define LATE_NS 1000000000ULL
/* Messages for which nothing waits are looked at after so many looks of the watch. */
#define LAZY_ROUNDS 20

static __always_inline struct timer *get_timer(u32 which)
{
	return bpf_map_lookup_elem(&timers, &which);
}

static __always_inline struct task *get_task(u32 slot)
{
	return bpf_map_lookup_elem(&tasks, &slot);
}

static __always_inline struct cpu *get_cpu(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

/* A task that has a slot. */
static __always_inline struct task *task_of(struct task_struct *p)
{
	u32 slot = p->scx.dsq_vtime;

	return slot ? get_task(slot) : NULL;
}

static __always_inline bool is_agents(struct task_struct *p)
{
	return p->tgid == control.tgid;
}

static __always_inline bool pending(void)
{
	return READ(control.head) != READ(control.tail) || READ(control.due);
}

static __noinline int hurry_watch(void)
{
	struct timer *watch = get_timer(WATCH);

	if (watch && __sync_val_compare_and_swap(&control.watch_is_slow, 1, 0) == 1)
		bpf_timer_start(&watch->timer, WATCH_NS, 0);
	return 0;
}

/* Has the agent called on an idle CPU, or on this one if none is idle and that may be. */
static __noinline int call(s32 here, bool may_preempt)
{
	const struct cpumask *online;
	s32 idle;

	if (!READ(control.parked) || leaves())
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

	if (READ(control.watch_is_slow))
		hurry_watch();
	if (READ(control.head) - READ(control.tail) + SLACK > ring_mask) {
		__sync_fetch_and_add(&control.lost, 1);
		return 0;
	}
	number = __sync_fetch_and_add(&control.head, 1);
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

/* Something about it is different where it stands. If it was decided for, that does not count. */
static __always_inline u64 has_changed(struct task *t)
{
	u64 state = READ(t->word) & 0xff;

	return now_is(t, state == DECIDED ? WAITS : state);
}

static __always_inline void
tell_on(u32 cpu, u32 kind, struct task_struct *p, struct task *t, u64 seq, u32 flags, u64 arg)
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

/* Takes the agent if it is parked, for this CPU to run. Not outside of ops.dispatch and ops.enqueue. */
static __noinline int take_agent(s32 cpu)
{
	struct task_struct *p;

	if (!READ(control.parked) || __sync_val_compare_and_swap(&control.parked, 1, 0) != 1)
		return 0;
	control.called = 0;
	p = bpf_task_from_pid(control.tid);
	if (!p)
		return 0;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_INF, SCX_ENQ_PREEMPT);
	bpf_task_release(p);
	return 1;
}

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
	note_allowed(t, p);
	seq = now_is(t, ASLEEP);
	t->began = seq;
	tell_of(NEW, p, t, seq, 0, t->is_idle_policy);
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

OPS(select_cpu) s32 BPF_PROG(agent_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);
	struct task *t = task_of(p);
	struct cpu *c;

	if (!t)
		return cpu;
	c = get_cpu(cpu);
	/*
	 * Where nothing waits and a CPU has nothing to run, there is nothing to decide for a policy that leaves it to the kernel where a
	 * task goes: the task runs at once, and the agent hears of it with what happens next.
	 */
	if (may_place && is_idle && c && READ(c->looks) && !READ(c->next) && READ(control.waiting) <= 0) {
		c->looks = 0;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, READ(control.slice_ns) ?: slice_default_ns, 0);
		tell_on(cpu, RUNNABLE, p, t, now_is(t, RUNS), WOKEN | PLACED, 0);
		return cpu;
	}
	t->select = (wake_flags & 0xffff) | (bpf_get_smp_processor_id() + 1) << 16;
	t->previous = prev_cpu;
	return cpu;
}

/* Threads of the agent's process go before everything else. The one that decides is parked if it has nothing to do. */
static __noinline int enqueue_agent(struct task_struct *p, u64 enq_flags)
{
	s32 cpu = cpu_of(p);

	if (p->pid != control.tid || !READ(control.yields)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, p->pid == control.tid ? SCX_SLICE_INF : SCX_SLICE_DFL,
				   enq_flags | SCX_ENQ_PREEMPT);
		return 0;
	}
	/* A message that is written after this finds it parked. */
	control.yields = 0;
	__sync_lock_test_and_set(&control.parked, 1);
	/* What was just decided for this CPU is not made to leave it again. */
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
			wait_beyond(p, enq_flags, !leaves());
			return;
		}
		__sync_fetch_and_add(&control.beyond, -1);
	}
	slot = p->scx.dsq_vtime;
	if (enq_flags & SCX_ENQ_WAKEUP)
		flags |= WOKEN;
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
		if (READ(control.parked))
			call(t->cpu, true);
	} else if (!c || !c->looks) {
		/* An idle CPU is woken up by the kernel, and takes the agent. */
		call(t->cpu, READ(control.eager));
	} else if (!(enq_flags & SCX_ENQ_WAKEUP)) {
		call(t->cpu, true);
	}
}

/* What was decided for a CPU does not count any more, or the task cannot run there. */
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

OPS(dispatch) void BPF_PROG(agent_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu *c = get_cpu(cpu);
	bool could_go_on = prev && prev->scx.flags & SCX_TASK_QUEUED;
	u32 slot = 0;

	if (!c)
		return;
	c->leaving = 0;
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
		if (pending() && (READ(control.waiting) > 0 || READ(control.called)) && take_agent(cpu))
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
			control.watch_ticks++;
		return;
	}
	if (!wants_ticks)
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

	if (c)
		c->looks = 0;
	tell_cpu(ONLINE, cpu);
}

OPS(cpu_offline) void BPF_PROG(agent_cpu_offline, s32 cpu)
{
	struct cpu *c = get_cpu(cpu);
	u64 slot;

	if (c) {
		slot = __sync_lock_test_and_set(&c->next, 0);
		if (slot)
			refuse(cpu, slot, c->seq);
	}
	tell_cpu(OFFLINE, cpu);
	call(cpu, false);
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
	u64 age_ns = now_ns - control.watch_since_ns;
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
	if (runs && age_ns >= LOOPS_NS && READ(control.watch_ticks) >= LOOPS_TICKS) {
		give_up(2, age_ns / 1000000);
		return 1;
	}
	if (is_queued && !runs && age_ns >= LATE_NS) {
		give_up(4, age_ns / 1000000);
		return 1;
	}
	return 0;
}

static int on_watch(void *map, int *key, struct timer *watch)
{
	u64 now_ns = bpf_ktime_get_ns(), beat = READ(control.beat), head = READ(control.head), again_ns = WATCH_NS;
	bool was_slow = __sync_lock_test_and_set(&control.watch_is_slow, 0), is_parked = READ(control.parked);

	/* One that is not parked is at work, or on its way there. */
	if (beat != control.watch_beat || is_parked) {
		bool has_work = pending();

		control.watch_beat = beat;
		control.watch_since_ns = now_ns;
		control.watch_ticks = 0;
		if (was_slow) {
			/* It looks after tasks that wait for long. */
			control.due = 1;
			call(bpf_get_smp_processor_id(), true);
		} else if (!is_parked || !has_work) {
			control.watch_rounds = 0;
		} else if (++control.watch_rounds >= LAZY_ROUNDS) {
			control.watch_rounds = 0;
			call(bpf_get_smp_processor_id(), true);
		}
		if (is_parked && !has_work && head == control.watch_head)
			again_ns = WATCH_SLOW_NS;
		control.watch_head = head;
	} else if (look_at_agent(now_ns)) {
		return 0;
	}
	bpf_timer_start(&watch->timer, again_ns, 0);
	if (again_ns == WATCH_SLOW_NS) {
		/* A message that is written after this hurries it; one that was written just before did not. */
		__sync_lock_test_and_set(&control.watch_is_slow, 1);
		if (pending())
			hurry_watch();
	}
	return 0;
}

static int on_alarm(void *map, int *key, struct timer *alarm)
{
	control.due = 1;
	call(bpf_get_smp_processor_id(), true);
	return 0;
}

/* What the agent has decided, a batch at a time. */
SEC("syscall") int agent_shoot(void *ctx)
{
	return fire_all(bpf_get_smp_processor_id());
}

/* The agent wants to be called in so many nanoseconds. */
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
}

/* The agent gives the scheduler its name. */
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
	.enable = (void *)agent_enable,
	.disable = (void *)agent_disable,
	.init = (void *)agent_init,
	.exit = (void *)agent_exit,
	/* Tasks that exit, or that may not move for a moment, go on without the agent. */
	.flags = SCX_OPS_ENQ_LAST,
	.timeout_ms = 30000,
	.name = "ekiden_agent",
};
