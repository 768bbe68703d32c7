/* SPDX-License-Identifier: GPL-2.0-only */
/* What ekiden.ko can be asked, and what every outcome can ask for. */
#pragma once
#include "beyond.h"
#include "../include/ekiden_abi.h"

extern void ekiden_cpu_event(struct ekiden_event *event, struct ekiden_outcome *outcome) __ksym;
extern void ekiden_event(struct ekiden_event *event, struct ekiden_outcome *outcome) __ksym;
extern void ekiden_arm_timer(u32 cpu, u64 delay_ns) __ksym;
extern int ekiden_fault_text(char *text, u32 text__sz) __ksym;
extern struct task_struct *ekiden_pick(struct ekiden_event *event, struct ekiden_outcome *outcome) __ksym;
extern bool ekiden_chooses_cpu(u64 task) __ksym;
extern void ekiden_task_enable(struct task_struct *p, struct ekiden_event *event, struct ekiden_outcome *outcome) __ksym;
extern int ekiden_attach(void) __ksym;
extern void ekiden_detach(void) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, char[256]);
} fault_text SEC(".maps");

/* The policy is gone: tell the kernel, which takes every task back to its own scheduler at once. */
static __noinline int give_up(void)
{
	static char format[] = "%s";
	unsigned long long data[1];
	u32 zero = 0;
	char *text = bpf_map_lookup_elem(&fault_text, &zero);

	if (!text)
		return 0;
	ekiden_fault_text(text, sizeof(char[256]));
	data[0] = (unsigned long long)text;
	scx_bpf_error_bstr(format, data, sizeof(data));
	return 0;
}

/* Four CPUs plus one, 16 bits each; all ones for every CPU. */
static __noinline int kick(u64 kicks)
{
	u32 i, count;

	if (kicks == ~0ULL) {
		count = scx_bpf_nr_cpu_ids();
		bpf_for(i, 0, count)
			scx_bpf_kick_cpu(i, SCX_KICK_PREEMPT);
		return 0;
	}
	for (i = 0; i < 64; i += 16)
		if (kicks >> i & 0xffff)
			scx_bpf_kick_cpu((kicks >> i & 0xffff) - 1, SCX_KICK_PREEMPT);
	return 0;
}

/*
 * What sched_ext has to be asked for; not from a CPU that leaves. A kick only has work done sooner, and the next operation
 * elsewhere hears of the fault too.
 */
static __noinline int ask(u64 kicks, bool is_fault)
{
	if (leaves())
		return 0;
	if (kicks)
		kick(kicks);
	if (is_fault)
		give_up();
	return 0;
}

/* Out of line, as few outcomes ask for anything: so the operations keep fewer registers. */
static __noinline int carry_out_more(u32 cpu, u64 timer_ns, u64 kicks, bool is_fault)
{
	if (timer_ns)
		ekiden_arm_timer(cpu, timer_ns);
	if (kicks || is_fault)
		ask(kicks, is_fault);
	return 0;
}

/* What an outcome can ask for that is no fault. */
static __always_inline void carry_out_wishes(u32 cpu, struct ekiden_outcome *outcome)
{
	if (outcome->timer_ns | outcome->kicks)
		carry_out_more(cpu, outcome->timer_ns, outcome->kicks, false);
}

/* What every outcome can ask for. */
static __always_inline void carry_out(u32 cpu, struct ekiden_outcome *outcome)
{
	if (outcome->timer_ns | outcome->kicks || outcome->status == EKIDEN_FAULT)
		carry_out_more(cpu, outcome->timer_ns, outcome->kicks, outcome->status == EKIDEN_FAULT);
}

#define EVENT(event_kind, event_cpu, p) \
	{ .kind = (event_kind), .cpu = (event_cpu), .task = (p)->scx.dsq_vtime, .runtime_ns = (p)->se.sum_exec_runtime }
