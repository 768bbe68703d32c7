// SPDX-License-Identifier: GPL-2.0-only
/*
 * FIFOs in plain BPF, with the kernel's own queues: what one would write without Ekiden, for comparison. Tasks are placed as
 * under Ekiden's: the kernel chooses the CPU. Then each CPU serves its own queue, as under `fifo`; or all serve one, as under
 * `global-fifo`, and what is woken for an idle CPU goes there at once, as the kernel's own example scx_simple does in its
 * FIFO mode; or tasks go to the kernel's queue of the CPU, the least that a scheduler of sched_ext can do.
 */
#include "kernel.h"

char _license[] SEC("license") = "GPL";

s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym;

/* Whether there is one queue for all CPUs, or none but the kernel's. The verifier removes what is not wanted. */
const volatile bool is_shared = false;
const volatile bool is_local = false;

OPS(select_cpu) s32 BPF_PROG(baseline_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

	if ((is_shared || is_local) && is_idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, 0);
	return cpu;
}

OPS(enqueue) void BPF_PROG(baseline_enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 queue = is_shared ? 0 : scx_bpf_task_cpu(p);

	scx_bpf_dsq_insert(p, is_local ? SCX_DSQ_LOCAL : queue, SCX_SLICE_DFL, enq_flags);
}

OPS(dispatch) void BPF_PROG(baseline_dispatch, s32 cpu, struct task_struct *prev)
{
	if (!is_local)
		scx_bpf_dsq_move_to_local(is_shared ? 0 : cpu);
}

OPS(cpu_online) void BPF_PROG(baseline_cpu_online, s32 cpu)
{
}

OPS(cpu_offline) void BPF_PROG(baseline_cpu_offline, s32 cpu)
{
}

OPS_SLEEPABLE(init) s32 BPF_PROG(baseline_init)
{
	u32 count = scx_bpf_nr_cpu_ids();
	s32 ret;
	u32 cpu;

	bpf_for(cpu, 0, count) {
		ret = scx_bpf_create_dsq(cpu, -1);
		if (ret)
			return ret;
	}
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops baseline_ops = {
	.select_cpu = (void *)baseline_select_cpu,
	.enqueue = (void *)baseline_enqueue,
	.dispatch = (void *)baseline_dispatch,
	.cpu_online = (void *)baseline_cpu_online,
	.cpu_offline = (void *)baseline_cpu_offline,
	.init = (void *)baseline_init,
	.timeout_ms = 10000,
	.name = "ekiden_bpf_fifo",
};
