// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts how long tasks wait for a CPU after they became runnable, as in papers/003: from the wake-up, or from when
 * they lost the CPU, until they run. Nothing leaves the kernel but the counts.
 */
#include "kernel.h"

char _license[] SEC("license") = "GPL";

#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_F_NO_PREALLOC 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
/* As observe/page/src/histogram.rs counts: four buckets per doubling. */
#define PER_DOUBLING 4
#define BUCKETS 256
#define NAME_LEN 16

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BUCKETS);
	__type(key, u32);
	__type(value, u64);
} buckets SEC(".maps");

/* The longest wait, and the sum of all. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, u64);
} extremes SEC(".maps");

/* When a task began to wait; 0 if it does not. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} since SEC(".maps");

/* Whom to count: a thread or all of a process, 0 for any; a name, empty for any. */
const volatile u32 wanted_pid;
const volatile char wanted_comm[NAME_LEN];

static __always_inline bool is_wanted(struct task_struct *p)
{
	if (wanted_pid && p->pid != wanted_pid && p->tgid != wanted_pid)
		return false;
	if (wanted_comm[0]) {
		char comm[NAME_LEN] = {};
		int i;

		bpf_probe_read_kernel_str(comm, sizeof(comm), p->comm);
		for (i = 0; i < NAME_LEN; i++) {
			if (comm[i] != wanted_comm[i])
				return false;
		}
	}
	return p->pid;
}

static __always_inline void begins_to_wait(struct task_struct *p)
{
	u64 *since_ns;

	if (!is_wanted(p))
		return;
	since_ns = bpf_task_storage_get(&since, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (since_ns)
		*since_ns = bpf_ktime_get_ns();
}

static __always_inline u32 bucket_of(u64 ns)
{
	u64 high = ns;
	u32 log = 0, doublings;

	if (ns < PER_DOUBLING)
		return ns;
	if (high >> 32) {
		log += 32;
		high >>= 32;
	}
	if (high >> 16) {
		log += 16;
		high >>= 16;
	}
	if (high >> 8) {
		log += 8;
		high >>= 8;
	}
	if (high >> 4) {
		log += 4;
		high >>= 4;
	}
	if (high >> 2) {
		log += 2;
		high >>= 2;
	}
	if (high >> 1)
		log += 1;
	doublings = log - 2;
	return (doublings + 1) * PER_DOUBLING + (u32)(ns >> doublings) - PER_DOUBLING;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	begins_to_wait(p);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	begins_to_wait(p);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	u64 *since_ns, *count, *longest, *sum, waited_ns;
	u32 bucket, key = 0;

	if (prev->pid && (preempt || !prev_state))
		begins_to_wait(prev);
	if (!next->pid)
		return 0;
	since_ns = bpf_task_storage_get(&since, next, NULL, 0);
	if (!since_ns || !*since_ns)
		return 0;
	waited_ns = bpf_ktime_get_ns() - *since_ns;
	*since_ns = 0;
	if (waited_ns >> 63)
		return 0;
	bucket = bucket_of(waited_ns);
	count = bpf_map_lookup_elem(&buckets, &bucket);
	if (count)
		(*count)++;
	longest = bpf_map_lookup_elem(&extremes, &key);
	if (longest && *longest < waited_ns)
		*longest = waited_ns;
	key = 1;
	sum = bpf_map_lookup_elem(&extremes, &key);
	if (sum)
		*sum += waited_ns;
	return 0;
}
