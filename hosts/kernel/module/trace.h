/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints, for perf, bpftrace and tracefs: what the engine is told and what it answers, and how policies begin and end. A
 * tracepoint without a listener costs an instruction that does nothing.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ekiden

#if !defined(EKIDEN_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define EKIDEN_TRACE_H

#include <linux/tracepoint.h>
#include "host.h"

/* Lists that are macros. */
/* clang-format off */
#define EKIDEN_KINDS \
	EKIDEN_NAMED(TASK_INIT, "task_init") EKIDEN_NAMED(TASK_ENABLE, "task_enable") \
	EKIDEN_NAMED(TASK_DISABLE, "task_disable") EKIDEN_NAMED(TASK_EXIT, "task_exit") \
	EKIDEN_NAMED(SELECT_CPU, "select_cpu") EKIDEN_NAMED(ENQUEUE, "enqueue") \
	EKIDEN_NAMED(BLOCK, "block") EKIDEN_NAMED(PICK, "pick") \
	EKIDEN_NAMED(PICK_REFUSED, "pick_refused") EKIDEN_NAMED(TICK, "tick") \
	EKIDEN_NAMED(YIELD, "yield") EKIDEN_NAMED(NICE, "nice") EKIDEN_NAMED(AFFINITY, "affinity") \
	EKIDEN_NAMED(CPU_ONLINE, "cpu_online") EKIDEN_NAMED(CPU_OFFLINE, "cpu_offline") \
	EKIDEN_NAMED(TIMER, "timer") EKIDEN_NAMED(HINT, "hint") \
	EKIDEN_NAMED(QUEUE_OPEN, "queue_open") EKIDEN_NAMED(QUEUE_READY, "queue_ready") \
	EKIDEN_NAMED(QUEUE_CLOSE, "queue_close") EKIDEN_NAMED(TASK_MOVE, "task_move") \
	EKIDEN_NAMED(GROUP_CREATE, "group_create") EKIDEN_NAMED(GROUP_DESTROY, "group_destroy") \
	EKIDEN_NAMED(GROUP_WEIGHT, "group_weight") EKIDEN_NAMED(GROUP_IDLE, "group_idle") \
	EKIDEN_NAMED(GROUP_LIMIT, "group_limit") EKIDEN_NAMED(REFILL, "refill") \
	EKIDEN_NAMED_LAST(TASK_PARAMS, "task_params")

#define EKIDEN_STATUSES \
	EKIDEN_NAMED(DONE, "done") EKIDEN_NAMED(RUN, "run") \
	EKIDEN_NAMED(KEEP_PREVIOUS, "keep_previous") EKIDEN_NAMED(FAULT, "fault") \
	EKIDEN_NAMED(INVALID, "invalid") EKIDEN_NAMED_LAST(FULL, "full")

/* Programs that read the events do not know our names: the kernel is to put numbers there. */
#undef EKIDEN_NAMED
#undef EKIDEN_NAMED_LAST
#define EKIDEN_NAMED(name, text) TRACE_DEFINE_ENUM(EKIDEN_##name);
#define EKIDEN_NAMED_LAST(name, text) TRACE_DEFINE_ENUM(EKIDEN_##name);
EKIDEN_KINDS
EKIDEN_STATUSES
#undef EKIDEN_NAMED
#undef EKIDEN_NAMED_LAST
#define EKIDEN_NAMED(name, text) { EKIDEN_##name, text },
#define EKIDEN_NAMED_LAST(name, text) { EKIDEN_##name, text }

/* An event and its outcome. `pid` is of the task that the event is about, `next_pid` of the one that is to run; 0 for none. */
TRACE_EVENT_FN(ekiden_event,
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
		  __print_symbolic(__entry->kind, EKIDEN_KINDS), __entry->cpu, __entry->pid, __entry->flags,
		  __entry->runtime_ns, __print_symbolic(__entry->status, EKIDEN_STATUSES), __entry->chosen_cpu,
		  __entry->next_pid, __entry->slice_ns, __entry->kicks),
	ekiden_watch_events, ekiden_watch_events_no_more
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
