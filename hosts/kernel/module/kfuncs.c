// SPDX-License-Identifier: GPL-2.0-only
/*
 * The functions that BPF calls. This file is compiled with debug information, from which the module's BTF is made, and
 * it includes no header that defines struct task_struct: the module's BTF then only declares it, and the verifier takes
 * it for the kernel's own.
 */
#include <linux/btf_ids.h>
#include <linux/compiler.h>
#include <linux/export.h> /* THIS_MODULE, which newer kernels have in linux/init.h */
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/types.h>
#include "ekiden_abi.h"
#include "kfuncs.h"
#include "kfuncs_btf.h"

/* sched_ext calls nearly all operations with interrupts off, so that the guard keeps its CPU. */
static __always_inline void deliver_from_bpf(struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	if (static_branch_unlikely(&ekiden_watched))
		ekiden_do_watched(event, outcome);
	else if (unlikely(ekiden_guarded_deliver(event, outcome) == LEFT))
		ekiden_do_left(outcome);
}

/* Something happened; the outcome says what to do. It comes in zeroed. */
__bpf_kfunc void ekiden_event(struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	deliver_from_bpf(event, outcome);
}

/* Delivers events of the operations that sched_ext calls with interrupts on. */
__bpf_kfunc void ekiden_cpu_event(struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	ekiden_do_cpu_event(event, outcome);
}

/* A CPU looks for work; returns the task to run if the outcome is EKIDEN_RUN. */
__bpf_kfunc struct task_struct *ekiden_pick(struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	deliver_from_bpf(event, outcome);
	return outcome->status == EKIDEN_RUN ? (struct task_struct *)outcome->host_task : NULL;
}

/* Whether the policy of a task chooses CPUs itself: none does, all do, or the engine knows. */
__bpf_kfunc bool ekiden_chooses_cpu(u64 task)
{
	int asks = READ_ONCE(ekiden_asks_for_cpu);

	return asks > 1 ? ekiden_rs_chooses_cpu(task) : asks;
}

/* A task comes under our care; the outcome has its id. */
__bpf_kfunc void ekiden_task_enable(struct task_struct *p, struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	ekiden_do_enable(p, event, outcome);
}

/* Tells the policy after `delay_ns` that its timer on `cpu` went off. */
__bpf_kfunc void ekiden_arm_timer(u32 cpu, u64 delay_ns)
{
	ekiden_do_arm_timer(cpu, delay_ns);
}

__bpf_kfunc int ekiden_attach(void)
{
	return ekiden_do_attach();
}

__bpf_kfunc void ekiden_detach(void)
{
	ekiden_do_detach();
}

/* Why the policy is gone, as text. */
__bpf_kfunc int ekiden_fault_text(char *text, u32 text__sz)
{
	return ekiden_do_fault_text(text, text__sz);
}

/*
 * A CPU's timer went off, the policy was told, and wants these CPUs to look for work. Does nothing by itself: a BPF
 * program is attached to it, which can ask sched_ext. It stands here because the program finds its argument by BTF.
 */
noinline void ekiden_timer_fired(u64 kicks)
{
	/* Kept by the compiler, and with its argument. */
	asm volatile("" : : "r"(kicks));
}

BTF_KFUNCS_START(ekiden_kfunc_ids)
BTF_ID_FLAGS(func, ekiden_event)
BTF_ID_FLAGS(func, ekiden_cpu_event)
BTF_ID_FLAGS(func, ekiden_pick, KF_RET_NULL | KF_RCU_PROTECTED)
BTF_ID_FLAGS(func, ekiden_chooses_cpu)
BTF_ID_FLAGS(func, ekiden_task_enable)
BTF_ID_FLAGS(func, ekiden_arm_timer)
BTF_ID_FLAGS(func, ekiden_attach, KF_SLEEPABLE)
BTF_ID_FLAGS(func, ekiden_detach)
BTF_ID_FLAGS(func, ekiden_fault_text)
BTF_KFUNCS_END(ekiden_kfunc_ids)

static const struct btf_kfunc_id_set ekiden_kfunc_set = {
	.owner = THIS_MODULE,
	.set = &ekiden_kfunc_ids,
	.filter = ekiden_is_refused,
};

int ekiden_register_kfuncs(void)
{
	return register_btf_kfunc_id_set(BPF_PROG_TYPE_STRUCT_OPS, &ekiden_kfunc_set);
}
