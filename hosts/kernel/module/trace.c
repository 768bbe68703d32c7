// SPDX-License-Identifier: GPL-2.0-only
/* Says what happens, by tracepoints. */
#include <linux/sched.h>
#include "host.h"
#define CREATE_TRACE_POINTS
#include "trace.h"

static u32 pid_of(const void *host_task)
{
	return host_task ? ((const struct task_struct *)host_task)->pid : 0;
}

/* In an RCU read section, as all of sched_ext's operations are. */
void ekiden_do_trace(const struct ekiden_event *event, const struct ekiden_outcome *outcome)
{
	u32 pid = event->kind == EKIDEN_TASK_INIT ? event->args[1] : pid_of(ekiden_rs_host_task(event->task));
	u32 next_pid = outcome->status == EKIDEN_RUN ? pid_of((const void *)outcome->host_task) : 0;

	trace_ekiden_event(event, outcome, pid, next_pid);
}

void ekiden_say_of(const char *what, const struct ekiden_policy_slot *policy_slot, const struct ekiden_text *text)
{
	if (policy_slot->now)
		trace_ekiden_policy(what, policy_slot->now->policy->table->name, policy_slot->call_log.instance,
				    text ? text->bytes : "", text ? text->len : 0);
	ekiden_status_changed();
}
