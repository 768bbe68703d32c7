/* SPDX-License-Identifier: GPL-2.0-only */
/* What the programs of the agent host and the agent have mapped together; hosts/agent/src/wire.rs has the same. */
#ifndef EKIDEN_BPF_AGENT_SHARED_H
#define EKIDEN_BPF_AGENT_SHARED_H

#include "beyond.h"

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_STACK 23
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_F_MMAPABLE (1U << 10)
#define CLOCK_MONOTONIC 1
#define READ(x) (*(volatile typeof(x) *)&(x))

struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct balance_callback;

struct rq {
	struct balance_callback *balance_callback;
};

#pragma clang attribute pop

extern const struct rq runqueues __ksym;

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
	GROUP = 14,
	JOINED = 15,
};

/*
 * Flags of RUNNABLE: it slept; ops.select_cpu was asked before; its CPU looks for work, and this was what ran there; it runs
 * already; a tick has found it in user mode, and it has given way there and then.
 */
#define WOKEN 1
#define SELECTED 2
#define LEAVES_CPU 4
#define PLACED 8
#define AT_USER 16

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
	/* The slot of the control group that it counts for. */
	u32 group;
	u32 pad;
	/* What it had run in user mode when a tick last found it running, there or in the kernel. */
	u64 utime;
	u64 spare[4];
};

/* Room for this many control groups, with that of the root, which has slot 0. */
#define GROUPS_MOST 8192

/* A control group. A change of it is followed by a message, so that the agent looks at it again. */
struct group {
	/* The kernel's name for it, 0 for none; written last. */
	u64 id;
	/* CPU time in each period, and how much of what is not used may be kept; a period of 0 is no limit. */
	u64 quota_us;
	u64 period_us;
	u64 burst_us;
	/* The slot of the nearest group above it that has one. */
	u32 parent;
	u32 level;
	u32 weight;
	u32 is_idle;
	u32 is_delegated;
	/* Written by the agent: whether the time of its tasks is limited, by itself or a group above. */
	u32 limited;
	u64 spare;
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
	/* A value of enum presence. */
	u32 presence;
	/* The slot of the task that its last tick found in user mode with its slice used up, so that it gives way there. */
	u32 at_user;
	u32 spare[5];
};

/* What a CPU did last since the agent began. One that leaves is not offline yet, but the kernel pushes away what comes there. */
enum presence {
	STAYED = 0,
	LEFT = 1,
	CAME = 2,
	LEAVES = 3,
};

/* The result of a decision. */
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
	/* Shots in the batch. */
	u32 count;
	/* Whether a wake-up for a CPU that is busy has the agent called at once. */
	u32 eager;
	u64 alarm_ns;
	/* What a task gets that is placed without it. */
	u64 slice_ns;
	/* How many control groups have a limit, and how many of the tasks that wait are held back for lack of time. */
	u32 limits;
	u32 held;
	/* Whether the policy hears of ticks, and whether it leaves it to the kernel where a task goes. */
	u32 wants_ticks;
	u32 may_place;
	/* Written here: messages that were begun, and those that there was no room for. */
	u64 head;
	u64 lost;
	/* Tasks that wait and are not decided for. */
	s64 waiting;
	/* The agent has nothing to do, and is nowhere until a CPU takes it. */
	u32 throttled;
	u32 yields;
	/* It is wanted, if only because of the time. */
	u32 called;
	u32 due;
	u32 ended;
	u32 slots;
	/* The highest slot of a control group that was ever used. */
	u32 groups;
	u32 pad1;
	u64 pad2;
	/* Tasks without a slot. */
	s64 beyond;
	/* What the watch saw last. */
	u64 watch_beat;
	u64 watch_since_ns;
	u64 watch_head;
	/* When it has last heard of everything, or was called. */
	u64 watch_heard_ns;
	u32 watch_ticks;
	/* How soon it looks again: see agent_tell.h. */
	u32 watch_pace;
	/* CPUs that have gone offline and are not back. */
	s32 cpus_left;
	/* The CPU time that it has had in user mode. */
	u64 watch_utime;
	/* When a tick has last found it on a CPU. */
	u64 watch_tick_ns;
};

struct control control;

char exit_reason[64];
char exit_message[256];
/* Why the agent gives up, in its words. */
char fault_text[256];

const volatile u64 ring_mask;
const volatile u32 slots_most;
const volatile u32 nr_cpus;
/* Ticks that must have seen an agent in a loop, and their distance. */
const volatile u32 loop_ticks = 4;
const volatile u64 tick_ns = 4000000;
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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GROUPS_MOST);
	__type(key, u32);
	__type(value, struct group);
} groups SEC(".maps");

/* The slot of each control group but the root, by the kernel's name for it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GROUPS_MOST);
	__type(key, u64);
	__type(value, u32);
} group_slots SEC(".maps");

/* Slots of control groups that were used before. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, GROUPS_MOST);
	__uint(value_size, sizeof(u32));
} freed_groups SEC(".maps");

/* Can be read when the kernel has let go: the agent's process waits for that. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} end SEC(".maps");

/* A timer: BPF has timers only in the values of maps. */
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

static __always_inline struct timer *get_timer(u32 which)
{
	return bpf_map_lookup_elem(&timers, &which);
}

static __always_inline struct task *get_task(u32 slot)
{
	return bpf_map_lookup_elem(&tasks, &slot);
}

static __always_inline struct group *get_group(u32 slot)
{
	return bpf_map_lookup_elem(&groups, &slot);
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

#endif
