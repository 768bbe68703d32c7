// SPDX-License-Identifier: GPL-2.0-only
/* The C half of every policy module: it tells ekiden.ko of the policy in the Rust half. */
#include <linux/cpumask.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include "policy.h"

DEFINE_PER_CPU(void *, ekiden_call_log_here);

void ekiden_call_log_place(u32 cpu, void *place)
{
	/* The numbers of CPUs may have holes. */
	if (cpu_possible(cpu))
		per_cpu(ekiden_call_log_here, cpu) = place;
}

DEFINE_PER_CPU(unsigned long, ekiden_held);

void ekiden_forget_locks(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		per_cpu(ekiden_held, cpu) = 0;
}

bool ekiden_peek(void *to, const void *from, size_t len)
{
	return !copy_from_kernel_nofault(to, from, len);
}

unsigned long ekiden_current_at;
unsigned long ekiden_pid_at = offsetof(struct task_struct, pid);

static int __init policy_init(void)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
	ekiden_current_at = (unsigned long)&current_task;
#else
	ekiden_current_at = (unsigned long)&pcpu_hot.current_task;
#endif
	return ekiden_register_policy(&ekiden_policy_table, THIS_MODULE);
}

static void __exit policy_exit(void)
{
	ekiden_wait_until_unused(THIS_MODULE);
	ekiden_unregister_policy(&ekiden_policy_table);
}

module_init(policy_init);
module_exit(policy_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A scheduling policy for ekiden.ko");
MODULE_INFO(ekiden_abi, __stringify(EKIDEN_ABI_VERSION));
