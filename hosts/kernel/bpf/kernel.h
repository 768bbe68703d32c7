/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the BPF programs need of the kernel, and no more. Fields are found by name in the running kernel's BTF, so one
 * object serves every kernel that has them.
 */
#ifndef EKIDEN_BPF_KERNEL_H
#define EKIDEN_BPF_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u8 u8;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;
typedef _Bool bool;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
#define false 0
#define true 1
#define NULL ((void *)0)

enum bpf_map_type_used { BPF_MAP_TYPE_ARRAY = 2 };

struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));

struct bpf_iter_scx_dsq {
	__u64 opaque[6];
} __attribute__((aligned(8)));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cpumask {
	unsigned long bits[1];
};

typedef struct {
	u32 val;
} kuid_t;

/* What differs from a usual directory of root. */
struct kernfs_iattrs {
	kuid_t ia_uid;
};

struct kernfs_node {
	u64 id;
	struct kernfs_iattrs *iattr;
};

struct cgroup;

struct cfs_rq {
	int throttle_count;
	unsigned int h_nr_queued;
	unsigned int h_nr_runnable;
	unsigned int h_nr_delayed;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	int level;
	struct cgroup_subsys_state *subsys[1];
};

enum cgroup_subsys_id { cpu_cgrp_id = 1 };

/* Without a limit, the quota is all ones. */
struct cfs_bandwidth {
	s64 period;
	u64 quota;
};

struct task_group {
	struct cgroup_subsys_state css;
	int idle;
	struct task_group *parent;
	struct cfs_bandwidth cfs_bandwidth;
};

struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_period_us;
	u64 bw_quota_us;
	u64 bw_burst_us;
};

struct sched_entity {
	u64 sum_exec_runtime;
	unsigned char sched_delayed;
	struct cfs_rq *cfs_rq;
};

struct sched_ext_entity {
	u32 flags;
	u64 slice;
	u64 dsq_vtime;
	/* In ticks: since when it waits. */
	unsigned long runnable_at;
};

struct thread_info {
	u32 cpu;
};

struct sched_domain {
	unsigned long span[1];
};

struct sched_info {
	u64 run_delay;
	u64 last_queued;
};

struct task_struct {
	struct thread_info thread_info;
	struct sched_info sched_info;
	unsigned int __state;
	unsigned int flags;
	/* Unsigned, as they have different sizes in different kernels. */
	unsigned int on_rq;
	unsigned int on_cpu;
	int pid;
	int tgid;
	int prio;
	int static_prio;
	char comm[16];
	unsigned int policy;
	int nr_cpus_allowed;
	unsigned short migration_disabled;
	const struct cpumask *cpus_ptr;
	struct task_struct *real_parent;
	bool throttled;
	unsigned long core_cookie;
	u64 utime;
	struct task_group *sched_task_group;
	struct sched_entity se;
	struct sched_ext_entity scx;
};

struct scx_exit_info {
	const char *reason;
	char *msg;
};

#pragma clang attribute pop

/* The part of the kernel's struct that is used here; libbpf matches the members by name. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*set_weight)(struct task_struct *p, u32 weight);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *cpumask);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgrp);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, u32 weight);
	void (*cgroup_set_bandwidth)(struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us);
	void (*cgroup_set_idle)(struct cgroup *cgrp, bool idle);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

/* Numbers of sched_ext's interface, the same on every kernel from 6.16 to 7.3. */
#define SCX_DSQ_GLOBAL 0x8000000000000001ULL
#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_DSQ_LOCAL_ON 0xc000000000000000ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_ENQ_LAST (1ULL << 41)
#define SCX_DEQ_SLEEP 1ULL
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_TASK_QUEUED 1U
#define SCX_OPS_ENQ_LAST (1ULL << 1)
#define SCX_OPS_ENQ_EXITING (1ULL << 2)
#define SCX_OPS_SWITCH_PARTIAL (1ULL << 3)
#define SCX_OPS_ENQ_MIGRATION_DISABLED (1ULL << 4)
#define TASK_DEAD 0x80
#define TASK_STOPPED_OR_TRACED 0xc
#define PF_EXITING 4
#define SCX_SLICE_DFL 20000000ULL
#define SCX_SLICE_INF (~0ULL)
#define SCHED_IDLE_POLICY 5

s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym;
void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym;
void scx_bpf_dispatch_cancel(void) __ksym;
s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym __weak;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym __weak;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym __weak;
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
const struct cpumask *scx_bpf_get_online_cpumask(void) __ksym;
void scx_bpf_put_cpumask(const struct cpumask *cpumask) __ksym;
const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
void scx_bpf_put_idle_cpumask(const struct cpumask *cpumask) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym __weak;
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
bool bpf_cpumask_subset(const struct cpumask *part, const struct cpumask *whole) __ksym;
u32 bpf_cpumask_weight(const struct cpumask *cpumask) __ksym;
void scx_bpf_error_bstr(char *fmt, unsigned long long *data, u32 data__sz) __ksym;
u32 scx_bpf_nr_cpu_ids(void) __ksym;
/* Newer kernels want these two instead of a plain store. */
bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak;
bool scx_bpf_task_set_dsq_vtime(struct task_struct *p, u64 vtime) __ksym __weak;

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

/* The CPU whose run queue the task is on. */
static __always_inline s32 cpu_of(struct task_struct *p)
{
	if (bpf_core_field_exists(p->thread_info.cpu))
		return p->thread_info.cpu;
	return scx_bpf_task_cpu(p);
}

/*
 * Whether this CPU is on its way out. Its stopper and its idle task still wake up the waiters for that, the
 * task that takes it away and RCU, when its APIC is off and its irq_work was done for the last time. sched_ext
 * kicks and ends a scheduler by irq_work: asked from here, it would do neither until this CPU leaves again,
 * and nothing else by irq_work of this CPU either, because only the first of a list raises an interrupt.
 */
static __always_inline bool leaves(void)
{
	const struct cpumask *online = scx_bpf_get_online_cpumask();
	bool is_online = bpf_cpumask_test_cpu(bpf_get_smp_processor_id(), online);

	scx_bpf_put_cpumask(online);
	return !is_online;
}

#define OPS(name) SEC("struct_ops/" #name)
#define OPS_SLEEPABLE(name) SEC("struct_ops.s/" #name)

#endif
