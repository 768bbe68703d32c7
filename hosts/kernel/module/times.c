// SPDX-License-Identifier: GPL-2.0-only
/*
 * For how long interrupts are off because of us, per kind of event. Only if that is asked for: it takes two looks at the clock for
 * each event. Without a measurement or a listener to the tracepoint, an event costs one instruction that does nothing.
 */
#include <linux/kernel.h>
#include <linux/minmax.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include "host.h"
#include "trace.h"

DEFINE_STATIC_KEY_FALSE(ekiden_times);
/* Counts who listens to the tracepoint, measures, or has queues of hints. */
DEFINE_STATIC_KEY_FALSE(ekiden_watched);

int ekiden_watch_events(void)
{
	static_branch_inc(&ekiden_watched);
	return 0;
}

void ekiden_watch_events_no_more(void)
{
	static_branch_dec(&ekiden_watched);
}

/* What takes time with interrupts off besides events comes after them. */
static const struct {
	u32 kind;
	const char *name;
} kinds[] = {
	EKIDEN_KINDS,
	{ EKIDEN_TIME_INTRODUCE, "introduce" },
	{ EKIDEN_TIME_SCAN, "scan" },
	{ EKIDEN_TIME_SETTINGS, "settings" },
	{ EKIDEN_TIME_SAVE, "save" },
	{ EKIDEN_TIME_CHECK, "check" },
	{ EKIDEN_TIME_COME, "come" },
	{ EKIDEN_TIME_HINTS, "hints" },
	{ EKIDEN_TIME_STATUS, "status" },
	{ EKIDEN_TIME_FIGURES, "figures" },
};

static DEFINE_PER_CPU(u64, longest_ns[EKIDEN_TIME_KINDS]);

static int set_times(const char *text, const struct kernel_param *param)
{
	bool on;
	int ret = kstrtobool(text, &on);

	if (ret)
		return ret;
	/* Parameters are set one at a time. */
	if (on == static_key_enabled(&ekiden_times))
		return 0;
	if (on) {
		static_branch_enable(&ekiden_times);
		static_branch_inc(&ekiden_watched);
	} else {
		static_branch_dec(&ekiden_watched);
		static_branch_disable(&ekiden_times);
	}
	return 0;
}

static int get_times(char *text, const struct kernel_param *param)
{
	return sprintf(text, "%c\n", static_key_enabled(&ekiden_times) ? 'Y' : 'N');
}

static const struct kernel_param_ops times_ops = { .set = set_times, .get = get_times };
module_param_cb(times, &times_ops, NULL, 0644);
MODULE_PARM_DESC(times, "measure for how long interrupts are off because of each kind of event");

/* With interrupts off. */
void ekiden_times_end(u32 kind, u64 start_ns)
{
	u64 *longest;

	if (!start_ns || kind >= EKIDEN_TIME_KINDS)
		return;
	longest = this_cpu_ptr(&longest_ns[kind]);
	WRITE_ONCE(*longest, max(*longest, ktime_get_mono_fast_ns() - start_ns));
}

/* What kfuncs.c does by itself without a measurement or a listener. */
void ekiden_do_watched(struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	u64 start_ns = ekiden_times_begin();
	u32 kind = event->kind;

	if (unlikely(ekiden_guarded_deliver(event, outcome) == LEFT))
		ekiden_do_left(outcome);
	if (READ_ONCE(ekiden_any_queue))
		ekiden_look_at_queues();
	/* What a tracer takes is its own. */
	ekiden_times_end(kind, start_ns);
	if (tracepoint_enabled(ekiden_event))
		ekiden_do_trace(event, outcome);
}

int ekiden_put_times(char *to, size_t size)
{
	const char *comma = "";
	int at, cpu;
	size_t i;

	if (!static_key_enabled(&ekiden_times))
		return 0;
	at = scnprintf(to, size, ",\"off_ns_max\":{");
	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		u64 ns = 0;

		for_each_possible_cpu(cpu)
			ns = max(ns, READ_ONCE(per_cpu(longest_ns[kinds[i].kind], cpu)));
		if (!ns)
			continue;
		at += scnprintf(to + at, size - at, "%s\"%s\":%llu", comma, kinds[i].name, ns);
		comma = ",";
	}
	return at + scnprintf(to + at, size - at, "}");
}
