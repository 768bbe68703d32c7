// SPDX-License-Identifier: GPL-2.0-only
/*
 * Looks at the kernel's run queues and tasks when it is asked to, whichever scheduler there is. It hangs on nothing, so it
 * costs nothing between two looks. Read without locks: what it says of one moment may be some microseconds apart, and
 * a caller that judges by it has to look twice.
 */
#include "kernel.h"

char _license[] SEC("license") = "GPL";

/* 8192 CPUs, more than Linux has on any architecture. */
#define WORDS_MAX 128

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rq {
	unsigned int nr_running;
	u64 nr_switches;
	u64 clock;
	struct cfs_rq cfs;
	struct task_struct *curr;
	struct task_struct *idle;
	void *sd;
	void *rd;
	int online;
	struct rq *core;
	unsigned int core_enabled;
	unsigned int core_forceidle_count;
	unsigned long core_cookie;
};

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

extern const struct rq runqueues __ksym;

/* As hosts/kernel/loader/src/bpf/look.rs reads them. */
enum cpu_flags {
	IS_ONLINE = 1,
	IS_IDLE = 2,
	/* Outside of every scheduling domain: no scheduler moves tasks from or to it. */
	IS_ISOLATED = 4,
	/* Core scheduling keeps it idle while its sibling runs what must run alone. */
	IS_FORCED_IDLE = 8,
};

struct cpu_seen {
	u64 nr_switches;
	u64 root_domain;
	u64 core_cookie;
	u32 nr_running;
	u32 flags;
};

enum task_flags {
	IS_RUNNING = 1,
	/* It waits for a CPU, and could run now. */
	IS_WAITING = 2,
	/* It must not leave its CPU for a moment. */
	IS_BOUND = 4,
};

struct task_seen {
	u64 time_ns;
	u64 core_cookie;
	/* The inode of the control group that leaves it the least of a CPU, and its limit; a period of 0 if there is none. */
	u64 group;
	u64 quota_ns;
	u64 period_ns;
	/* For a CPU since it was made, and of that in the current wait. */
	u64 waited_ns;
	u64 waits_ns;
	u32 pid;
	u32 tgid;
	u32 cpu;
	u32 flags;
	s32 prio;
	s32 static_prio;
	char comm[16];
	/* How many words of the set of CPUs that it may use follow. */
	u32 words;
	u32 parent;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_seen);
} cpus SEC(".maps");

const volatile u32 nr_cpus;

/* Whether the iterator tells of tasks that neither run nor wait, too. */
bool of_all_tasks;

/* How many CPUs were idle, and on how many a task waited, in the last look. */
u32 idle, crowded;

/* Tasks that are asleep already, but leave the run queue only when it is their turn. */
static __always_inline u32 nr_asleep(const struct rq *rq)
{
	if (bpf_core_field_exists(rq->cfs.h_nr_runnable) && bpf_core_field_exists(rq->cfs.h_nr_queued))
		return rq->cfs.h_nr_queued - rq->cfs.h_nr_runnable;
	if (bpf_core_field_exists(rq->cfs.h_nr_delayed))
		return rq->cfs.h_nr_delayed;
	return 0;
}

static long look_at(u32 cpu, void *unused)
{
	struct cpu_seen *seen = bpf_map_lookup_elem(&cpus, &cpu);
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);
	/* Without the task that looks. */
	u32 nr_running, asleep, is_running;
	bool is_idle, is_this, is_forced = false;

	if (!rq || !seen)
		return 1;
	is_this = rq->curr->pid == (u32)bpf_get_current_pid_tgid();
	asleep = nr_asleep(rq);
	nr_running = rq->nr_running - is_this;
	/* They were not read at the same moment. */
	nr_running = nr_running > asleep ? nr_running - asleep : 0;
	is_running = rq->curr != rq->idle;
	is_idle = !is_running || (is_this && !nr_running);
	seen->nr_switches = rq->nr_switches;
	seen->root_domain = (u64)rq->rd;
	seen->nr_running = nr_running;
	if (bpf_core_field_exists(rq->core_cookie) && rq->core_enabled) {
		seen->core_cookie = rq->core->core_cookie;
		is_forced = rq->core->core_forceidle_count > 0;
	}
	seen->flags = (rq->online ? IS_ONLINE : 0) | (is_idle ? IS_IDLE : 0) | (rq->sd ? 0 : IS_ISOLATED) |
		      (is_forced ? IS_FORCED_IDLE : 0);
	if (rq->online && rq->sd) {
		idle += is_idle;
		crowded += nr_running > is_running;
	}
	return 0;
}

/* Says whether some CPU is idle while a task waits for one. */
SEC("syscall")
int look(void *unused)
{
	idle = crowded = 0;
	bpf_loop(nr_cpus, look_at, NULL, 0);
	return idle && crowded;
}

static __always_inline u32 flags_of(struct task_struct *p)
{
	bool is_throttled = false;

	if (p->on_cpu)
		return IS_RUNNING;
	if (p->on_rq != 1)
		return 0;
	if (bpf_core_field_exists(p->throttled))
		is_throttled = p->throttled;
	if (bpf_core_field_exists(p->se.cfs_rq) && bpf_core_field_exists(p->se.cfs_rq->throttle_count) && p->se.cfs_rq)
		is_throttled |= p->se.cfs_rq->throttle_count > 0;
	/* Its sleep is known to its class only later. */
	if (bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed)
		return 0;
	return is_throttled ? 0 : IS_WAITING;
}

/* By the clock of its run queue, which may be a tick behind. */
static __always_inline void note_waits(struct task_struct *p, struct task_seen *seen)
{
	const struct rq *rq = bpf_per_cpu_ptr(&runqueues, seen->cpu);
	u64 since_ns;

	if (!bpf_core_field_exists(p->sched_info.run_delay))
		return;
	seen->waited_ns = p->sched_info.run_delay;
	since_ns = p->sched_info.last_queued;
	if (rq && since_ns && rq->clock > since_ns) {
		seen->waits_ns = rq->clock - since_ns;
		seen->waited_ns += seen->waits_ns;
	}
}

/* The kernel allows more, but such depths are not in use. */
#define DEPTH_MAX 16

/* Whether its group has used that up, only its scheduler knows, unless it is the kernel's own. */
static __always_inline void note_limit(struct task_struct *p, struct task_seen *seen)
{
	struct task_group *group;
	u32 i;

	if (!bpf_core_field_exists(p->sched_task_group) || !bpf_core_field_exists(struct task_group, cfs_bandwidth))
		return;
	group = p->sched_task_group;
	for (i = 0; i < DEPTH_MAX && group; i++, group = group->parent) {
		u64 quota_ns = group->cfs_bandwidth.quota, period_ns = group->cfs_bandwidth.period;

		if (quota_ns == ~0ULL || !period_ns)
			continue;
		if (seen->period_ns && quota_ns / (period_ns >> 10 ?: 1) >= seen->quota_ns / (seen->period_ns >> 10 ?: 1))
			continue;
		seen->group = group->css.cgroup->kn->id;
		seen->quota_ns = quota_ns;
		seen->period_ns = period_ns;
	}
}

SEC("iter/task")
int tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct seq_file *seq = ctx->meta->seq;
	struct task_seen seen = {};
	/* A number, since the verifier does not let us step through an array that a pointer of the kernel's leads to. */
	u64 bits = 0;
	u32 i;

	if (!p || !p->pid)
		return 0;
	seen.flags = flags_of(p);
	if (!seen.flags && !of_all_tasks)
		return 0;
	if (p->migration_disabled)
		seen.flags |= IS_BOUND;
	seen.time_ns = bpf_ktime_get_ns();
	if (bpf_core_field_exists(p->core_cookie))
		seen.core_cookie = p->core_cookie;
	seen.pid = p->pid;
	seen.tgid = p->tgid;
	seen.cpu = cpu_of(p);
	note_waits(p, &seen);
	note_limit(p, &seen);
	seen.prio = p->prio;
	seen.static_prio = p->static_prio;
	bpf_probe_read_kernel_str(seen.comm, sizeof(seen.comm), p->comm);
	seen.parent = p->real_parent->tgid;
	seen.words = (nr_cpus + 63) / 64;
	bpf_seq_write(seq, &seen, sizeof(seen));
	bpf_core_read(&bits, sizeof(bits), &p->cpus_ptr);
	for (i = 0; i < WORDS_MAX && i < seen.words; i++) {
		u64 word = 0;

		bpf_probe_read_kernel(&word, sizeof(word), (void *)(bits + i * sizeof(word)));
		bpf_seq_write(seq, &word, sizeof(word));
	}
	return 0;
}
