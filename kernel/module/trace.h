/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints, for perf, bpftrace and tracefs: what the engine is told and what it answers, and what becomes of policies. A
 * tracepoint that nobody listens to costs an instruction that does nothing.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ekiden

#if !defined(EKIDEN_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define EKIDEN_TRACE_H

#include <linux/tracepoint.h>
#include "ekiden_abi.h"

#define EKIDEN_KIND_NAMES									\
	{ EKIDEN_TASK_INIT, "task_init" }, { EKIDEN_TASK_ENABLE, "task_enable" },		\
	{ EKIDEN_TASK_DISABLE, "task_disable" }, { EKIDEN_TASK_EXIT, "task_exit" },		\
	{ EKIDEN_SELECT_CPU, "select_cpu" }, { EKIDEN_ENQUEUE, "enqueue" },			\
	{ EKIDEN_BLOCK, "block" }, { EKIDEN_PICK, "pick" },					\
	{ EKIDEN_PICK_REFUSED, "pick_refused" }, { EKIDEN_TICK, "tick" },			\
	{ EKIDEN_YIELD, "yield" }, { EKIDEN_NICE, "nice" }, { EKIDEN_AFFINITY, "affinity" },	\
	{ EKIDEN_CPU_ONLINE, "cpu_online" }, { EKIDEN_CPU_OFFLINE, "cpu_offline" },		\
	{ EKIDEN_TIMER, "timer" }, { EKIDEN_HINT, "hint" },					\
	{ EKIDEN_QUEUE_OPEN, "queue_open" }, { EKIDEN_QUEUE_READY, "queue_ready" },		\
	{ EKIDEN_QUEUE_CLOSE, "queue_close" }, { EKIDEN_TASK_MOVE, "task_move" },		\
	{ EKIDEN_GROUP_CREATE, "group_create" }, { EKIDEN_GROUP_DESTROY, "group_destroy" },	\
	{ EKIDEN_GROUP_WEIGHT, "group_weight" }, { EKIDEN_GROUP_IDLE, "group_idle" },		\
	{ EKIDEN_GROUP_LIMIT, "group_limit" }, { EKIDEN_REFILL, "refill" },			\
	{ EKIDEN_TASK_PARAMS, "task_params" }

#define EKIDEN_STATUS_NAMES									\
	{ EKIDEN_DONE, "done" }, { EKIDEN_RUN, "run" }, { EKIDEN_KEEP_PREVIOUS, "keep_previous" }, \
	{ EKIDEN_FAULT, "fault" }, { EKIDEN_INVALID, "invalid" }, { EKIDEN_FULL, "full" }

/* An event and its outcome. `pid` is of the task that the event is about, `next_pid` of the one that is to run; 0 for none. */
TRACE_EVENT(ekiden_event,
	TP_PROTO(const struct ekiden_event *event, const struct ekiden_outcome *outcome, u32 pid, u32 next_pid),
	TP_ARGS(event, outcome, pid, next_pid),
	TP_STRUCT__entry(
		__field(u32, kind)
		__field(u32, cpu)
		__field(u32, pid)
		__field(u64, flags)
		__field(u64, runtime_ns)
		__field(int, status)
		__field(int, chosen_cpu)
		__field(u32, next_pid)
		__field(u64, slice_ns)
		__field(u64, kicks)
	),
	TP_fast_assign(
		__entry->kind = event->kind;
		__entry->cpu = event->cpu;
		__entry->pid = pid;
		__entry->flags = event->flags;
		__entry->runtime_ns = event->runtime_ns;
		__entry->status = outcome->status;
		__entry->chosen_cpu = outcome->cpu;
		__entry->next_pid = next_pid;
		__entry->slice_ns = outcome->slice_ns;
		__entry->kicks = outcome->kicks;
	),
	TP_printk("kind=%s cpu=%u pid=%u flags=%llx runtime_ns=%llu status=%s chosen_cpu=%d next_pid=%u slice_ns=%llu kicks=%llx",
		  __print_symbolic(__entry->kind, EKIDEN_KIND_NAMES), __entry->cpu, __entry->pid, __entry->flags,
		  __entry->runtime_ns, __print_symbolic(__entry->status, EKIDEN_STATUS_NAMES), __entry->chosen_cpu,
		  __entry->next_pid, __entry->slice_ns, __entry->kicks)
);

/* Something becomes of a policy: "created", "upgraded", "removed", or "taken out" for a reason. */
TRACE_EVENT(ekiden_policy,
	TP_PROTO(const char *what, const char *policy, u32 instance, const char *text, u32 text_len),
	TP_ARGS(what, policy, instance, text, text_len),
	TP_STRUCT__entry(
		__array(char, what, 16)
		__array(char, policy, EKIDEN_NAME_LEN)
		__field(u32, instance)
		__array(char, text, 256)
	),
	TP_fast_assign(
		strscpy(__entry->what, what, sizeof(__entry->what));
		strscpy(__entry->policy, policy, sizeof(__entry->policy));
		__entry->instance = instance;
		text_len = min_t(u32, text_len, sizeof(__entry->text) - 1);
		memcpy(__entry->text, text, text_len);
		__entry->text[text_len] = 0;
	),
	TP_printk("what=%s policy=%s instance=%u text=%s", __entry->what, __entry->policy, __entry->instance, __entry->text)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
