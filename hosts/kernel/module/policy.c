// SPDX-License-Identifier: GPL-2.0-only
/* The C half of every policy module: it tells ekiden.ko of the policy in the Rust half. */
#include <linux/cpumask.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include "interface.h"

extern const struct ekiden_policy_table ekiden_policy_table;

/* Where each CPU records its calls; NULL for nowhere. The Rust half reads it (hosts/kernel/policy/src/here_<arch>.rs). */
DECLARE_PER_CPU(void *, ekiden_call_log_here);
DEFINE_PER_CPU(void *, ekiden_call_log_here);

void ekiden_call_log_place(u32 cpu, void *place);
void ekiden_call_log_place(u32 cpu, void *place)
{
	/* The numbers of CPUs may have holes. */
	if (cpu_possible(cpu))
		per_cpu(ekiden_call_log_here, cpu) = place;
}

/* The exclusive or of the addresses of all locks that the call on this CPU has (framework/lock/src/held_<arch>.rs). */
DECLARE_PER_CPU(unsigned long, ekiden_held);
DEFINE_PER_CPU(unsigned long, ekiden_held);

void ekiden_forget_locks(void);
void ekiden_forget_locks(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		per_cpu(ekiden_held, cpu) = 0;
}

/* What is at an address that may be that of nothing. */
bool ekiden_peek(void *to, const void *from, size_t len);
bool ekiden_peek(void *to, const void *from, size_t len)
{
	return !copy_from_kernel_nofault(to, from, len);
}

/* For the Rust half too: where each CPU has the task that it runs, as an address in its own part; and where that has its PID. */
extern unsigned long ekiden_current_at, ekiden_pid_at;
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
