// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the engine and policies ask: the time, where a task may run, which CPUs are idle, what runs.
 */
#include <linux/cpumask.h>
#include <linux/ktime.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/version.h>
#include "host.h"

u64 ekiden_c_now_ns(void)
{
	return ktime_get_mono_fast_ns();
}

bool ekiden_c_may_run(const struct task_struct *p, u32 cpu)
{
	if (cpu >= nr_cpu_ids || !cpu_online(cpu) || !cpumask_test_cpu(cpu, p->cpus_ptr))
		return false;
	/* A task that has pinned itself for a moment stays where it is. */
	if (p->migration_disabled)
		return task_cpu(p) == cpu;
	/*
	 * Long before a CPU is offline it is not active any more: the kernel pushes every task away that comes there, or has it
	 * run anywhere, before all those that wait for us.
	 */
	return cpu_active(cpu) || p->nr_cpus_allowed == 1;
}

static void copy_mask(const struct cpumask *mask, u64 *words, size_t len)
{
	size_t i;

	memset(words, 0, len * sizeof(*words));
	for (i = 0; i < min_t(size_t, len, BITS_TO_LONGS(nr_cpu_ids)); i++)
		words[i] = cpumask_bits(mask)[i];
}

void ekiden_c_allowed_cpus(const struct task_struct *p, u64 *words, size_t len)
{
	copy_mask(p->cpus_ptr, words, len);
}

static bool may_run(u64 task, u32 cpu)
{
	const struct task_struct *p = ekiden_rs_host_task(task);

	return p && ekiden_c_may_run(p, cpu);
}

/* A policy is not shown CPUs that are away, or about to: neither a task's own mask nor the engine's of idle CPUs hears of that. */
static void keep(const struct cpumask *mask, u64 *words, size_t len)
{
	size_t i;

	for (i = 0; i < min_t(size_t, len, BITS_TO_LONGS(nr_cpu_ids)); i++)
		words[i] &= cpumask_bits(mask)[i];
}

static void allowed_cpus(u64 task, u64 *words, size_t len)
{
	const struct task_struct *p = ekiden_rs_host_task(task);

	copy_mask(p ? p->cpus_ptr : cpu_none_mask, words, len);
	keep(p && p->nr_cpus_allowed == 1 ? cpu_online_mask : cpu_active_mask, words, len);
}

static void idle_cpus(u64 *words, size_t len)
{
	ekiden_rs_idle_cpus(words, len);
	keep(cpu_active_mask, words, len);
}

/*
 * A task that has pinned itself for a moment stays where it is, and its CPU comes to it by itself. A CPU that leaves can
 * kick no other: one that it takes would count as kicked until it looks for work for another reason.
 */
static u32 take_idle(u64 task, const u64 *among, size_t len)
{
	const struct task_struct *p = ekiden_rs_host_task(task);
	const u64 *allowed;

	if (!p || p->migration_disabled || !cpu_online(raw_smp_processor_id()))
		return 0;
	BUILD_BUG_ON(sizeof(*allowed) != sizeof(unsigned long));
	allowed = (const u64 *)cpumask_bits(p->cpus_ptr);
	return ekiden_rs_take_idle(task, allowed, BITS_TO_LONGS(nr_cpu_ids), among, len);
}

/* Since when the task has its CPU, by the monotonic clock; 0 where the kernel does not keep that. */
static u64 on_cpu_since(const struct task_struct *p)
{
#ifdef CONFIG_SCHED_INFO
	u64 arrival = READ_ONCE(p->sched_info.last_arrival), now = local_clock();

	return arrival && arrival <= now ? ekiden_c_now_ns() - (now - arrival) : 0;
#else
	return 0;
#endif
}

static u64 running_on(u32 cpu, u32 *weight, u64 *since_ns)
{
	const struct task_struct *p;
	u64 task;

	if (cpu >= nr_cpu_ids || !cpu_possible(cpu))
		return 0;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
	p = READ_ONCE(per_cpu(current_task, cpu));
#else
	p = READ_ONCE(per_cpu(pcpu_hot.current_task, cpu));
#endif
	task = p ? READ_ONCE(p->scx.dsq_vtime) : 0;
	*weight = task ? ekiden_rs_weight_of_running(task, cpu) : 0;
	if (!*weight)
		return 0;
	*since_ns = on_cpu_since(p);
	return task;
}

static u32 process_of(u64 task)
{
	const struct task_struct *p = ekiden_rs_host_task(task);

	return p ? p->tgid : 0;
}

const struct ekiden_host_table ekiden_candidate_host = {
	.now_ns = ekiden_c_now_ns,
	.may_run = may_run,
	.allowed_cpus = allowed_cpus,
	.idle_cpus = idle_cpus,
	.claim = ekiden_rs_claim,
	.take_idle = take_idle,
	.running = running_on,
	.notify = ekiden_c_notify,
	.process = process_of,
	.group = ekiden_rs_group,
	.reason = ekiden_keep_first,
	.fault = (void (*)(const struct ekiden_host_table *))ekiden_candidate_fault,
	.leave = (void (*)(const struct ekiden_host_table *))ekiden_candidate_fault,
};

const struct ekiden_host_table ekiden_running_host = {
	.now_ns = ekiden_c_now_ns,
	.may_run = may_run,
	.allowed_cpus = allowed_cpus,
	.idle_cpus = idle_cpus,
	.claim = ekiden_rs_claim,
	.take_idle = take_idle,
	.running = running_on,
	.notify = ekiden_c_notify,
	.process = process_of,
	.group = ekiden_rs_group,
	.reason = ekiden_keep_first,
	.fault = (void (*)(const struct ekiden_host_table *))ekiden_policy_fault,
	.leave = (void (*)(const struct ekiden_host_table *))ekiden_candidate_fault,
};
