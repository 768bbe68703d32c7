// SPDX-License-Identifier: GPL-2.0-only
/*
 * A scheduler that makes up a task: an address that is none. ops.init does it, and then refuses to begin. A real task, by the one function
 * that the verifier checks, shows that there is an engine that takes some.
 */
#include "../../../hosts/kernel/bpf/kernel.h"
#include "../../../hosts/kernel/include/ekiden_abi.h"

char _license[] SEC("license") = "GPL";

extern void ekiden_cpu_event(struct ekiden_event *event, struct ekiden_outcome *outcome) __ksym;
extern void ekiden_event(struct ekiden_event *event, struct ekiden_outcome *outcome) __ksym;
extern void ekiden_task_enable(struct task_struct *p, struct ekiden_event *event, struct ekiden_outcome *outcome) __ksym;
void bpf_local_irq_save(unsigned long *flags__irq_flag) __ksym;
void bpf_local_irq_restore(unsigned long *flags__irq_flag) __ksym;

/* Results for a made-up task by either function, and for a real one. */
int statuses[3];
u64 tasks[3];

OPS_SLEEPABLE(init) s32 BPF_PROG(impostor_init)
{
	struct ekiden_event made_up = { .kind = EKIDEN_TASK_INIT, .args = { 0xffff888000001000ULL, 4711 } };
	struct ekiden_event enable = { .kind = EKIDEN_TASK_ENABLE };
	struct ekiden_event leave = { .kind = EKIDEN_TASK_DISABLE };
	struct ekiden_outcome outcome = {};
	unsigned long flags;

	ekiden_cpu_event(&made_up, &outcome);
	statuses[0] = outcome.status;
	tasks[0] = outcome.task;
	__builtin_memset(&outcome, 0, sizeof(outcome));
	bpf_local_irq_save(&flags);
	ekiden_event(&made_up, &outcome);
	bpf_local_irq_restore(&flags);
	statuses[1] = outcome.status;
	tasks[1] = outcome.task;
	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_task_enable(bpf_get_current_task_btf(), &enable, &outcome);
	statuses[2] = outcome.status;
	tasks[2] = outcome.task;
	leave.task = outcome.task;
	__builtin_memset(&outcome, 0, sizeof(outcome));
	ekiden_cpu_event(&leave, &outcome);
	return -1;
}

SEC(".struct_ops.link")
struct sched_ext_ops impostor = {
	.init = (void *)impostor_init,
	.name = "impostor",
};
