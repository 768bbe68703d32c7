// SPDX-License-Identifier: GPL-2.0-only
/*
 * What /dev/ekiden says when it is read, for everybody, and /proc/ekiden, for scripts.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include "host.h"

#define STATUS_LEN SZ_64K

/* A text goes into JSON: quotes and backslashes in it would break that. */
static int put_text(char *to, size_t size, const char *key, const char *text, size_t len)
{
	int at = scnprintf(to, size, ",\"%s\":\"", key);
	size_t i;

	for (i = 0; i < len && at + 4 < size; i++) {
		if (text[i] == '"' || text[i] == '\\')
			to[at++] = '\\';
		to[at++] = text[i] < ' ' ? ' ' : text[i];
	}
	return at + scnprintf(to + at, size - at, "\"");
}

static int put_loaded(char *to, size_t size)
{
	const struct ekiden_policy *policy;
	const char *comma = "";
	int at = scnprintf(to, size, ",\"loaded\":[");

	list_for_each_entry(policy, &ekiden_policies, node) {
		at += scnprintf(to + at, size - at, "%s\"%.32s\"", comma, policy->table->name);
		comma = ",";
	}
	return at + scnprintf(to + at, size - at, "]");
}

/* What Rust says of the engine, or of the policy in the seat of this number, counted from 1. */
static int put_counts(char *to, size_t size, u32 seat)
{
	s64 len;

	if (size < SZ_1K)
		return 0;
	/* It takes locks that calls in an interrupt may want. */
	local_irq_disable();
	len = ekiden_run_guarded(ekiden_rs_status, to, size, seat, 0, 0);
	local_irq_enable();
	return len > 0 ? len : 0;
}

static int put_seat(char *to, size_t size, u32 number)
{
	const struct ekiden_seat *seat = &ekiden_running.seats[number];
	const struct ekiden_policy_table *table = seat->now->policy->table;
	int at = scnprintf(to, size, "\"policy\":\"%.32s\",\"seat\":%u,\"calls\":%llu", table->name, number, table->calls);

	at += scnprintf(to + at, size - at,
			",\"module\":\"%s\",\"upgrades\":%llu,\"upgrade_wait_ns\":%llu,\"upgrade_wait_ns_max\":%llu",
			module_name(seat->now->policy->owner), seat->upgrades, seat->wait_ns, seat->wait_ns_max);
	at += scnprintf(
		to + at, size - at, ",\"instance\":%u,\"ticks_khz\":%u,\"tape_records\":%zu,\"tape_cpus\":%u,\"tape_runs\":%s",
		seat->tape.instance, seat->tape.ticks_khz, seat->tape.records, seat->tape.cpus, seat->tape_runs ? "true" : "false");
	if (seat->access == EKIDEN_CREATE_GROUP)
		at += scnprintf(to + at, size - at, ",\"open_to_group\":%u", from_kgid_munged(&init_user_ns, seat->group));
	at += scnprintf(to + at, size - at, ",\"open\":%s",
			seat->access == EKIDEN_CREATE_OPEN || ekiden_is_default(seat) ? "true" : "false");
	at += put_text(to + at, size - at, "params", seat->now->params, min_t(size_t, seat->now->args.params_len, SZ_1K));
	at += ekiden_put_queues(to + at, size - at, number);
	if (seat->fell_ns)
		at += scnprintf(to + at, size - at, ",\"fell_ns\":%llu", seat->fell_ns);
	if (seat->fault && seat->fault->len)
		at += put_text(to + at, size - at, "fault", seat->fault->bytes, seat->fault->len);
	if (!ekiden_is_broken()) {
		at += put_counts(to + at, size - at, number + 1);
		at += ekiden_put_figures(to + at, size - at, number);
	}
	return at;
}

/* How CPUs were brought to stand still, and for which one that took long. */
static int put_stops(char *to, size_t size)
{
	const struct ekiden_stops *stops = &ekiden_stops;

	return scnprintf(to, size,
			 ",\"stops\":{\"quick\":%llu,\"slow\":%llu,\"wait_ns\":%llu,\"wait_ns_max\":%llu,"
			 "\"took_ns\":%llu,\"took_ns_max\":%llu,\"late_cpu\":%d,\"graces\":%llu,\"grace_ns\":%llu,"
			 "\"grace_ns_max\":%llu}",
			 stops->quick, stops->slow, stops->wait_ns, stops->wait_ns_max, stops->took_ns, stops->took_ns_max,
			 stops->late_cpu, stops->graces, stops->grace_ns, stops->grace_ns_max);
}

static int put_seats(char *to, size_t size)
{
	u64 order = ekiden_is_broken() ? 0 : ekiden_rs_order();
	int at = scnprintf(to, size, ",\"policies\":[");
	const char *comma = "";

	for (; order; order >>= 8) {
		at += scnprintf(to + at, size - at, "%s{", comma);
		at += put_seat(to + at, size - at, (order & 0xff) - 1);
		at += scnprintf(to + at, size - at, "}");
		comma = ",";
	}
	return at + scnprintf(to + at, size - at, "]");
}

/*
 * The one that gets the tasks for which no policy was chosen comes first and by itself; then all of them, in order. All
 * of it is of one moment, in however many pieces a program reads it.
 */
static int control_show(struct seq_file *file, void *unused)
{
	char *text = kvzalloc(STATUS_LEN, GFP_KERNEL);
	char fault[EKIDEN_TEXT_LEN + 1];
	int at, len;

	if (!text)
		return -ENOMEM;
	mutex_lock(&ekiden_control);
	at = scnprintf(text, STATUS_LEN, "{\"abi\":%u", EKIDEN_ABI_VERSION);
	if (ekiden_running.nr) {
		at += scnprintf(text + at, STATUS_LEN - at, ",\"attached\":%s",
				READ_ONCE(ekiden_running.attached) ? "true" : "false");
		if (!ekiden_is_broken())
			at += put_counts(text + at, STATUS_LEN - at, 0);
		at += put_seats(text + at, STATUS_LEN - at);
		at += put_stops(text + at, STATUS_LEN - at);
		at += ekiden_put_times(text + at, STATUS_LEN - at);
	}
	len = ekiden_do_fault_text(fault, sizeof(fault));
	if (len)
		at += put_text(text + at, STATUS_LEN - at, "fault", fault, len);
	at += put_loaded(text + at, STATUS_LEN - at);
	at += scnprintf(text + at, STATUS_LEN - at, "}\n");
	mutex_unlock(&ekiden_control);
	seq_write(file, text, at);
	kvfree(text);
	return 0;
}

int ekiden_control_open(struct inode *inode, struct file *file)
{
	/* The miscdevice, which misc_open() left there; seq_open() warns of anything. */
	file->private_data = NULL;
	return single_open(file, control_show, NULL);
}

/* ---- /proc/ekiden: counters for scripts ---- */

static void show_seat(struct seq_file *file, const struct ekiden_seat *seat)
{
	u64 counters[EKIDEN_COUNTERS];
	u32 cpu;
	int i;

	for_each_possible_cpu(cpu) {
		if (!ekiden_rs_counters(seat - ekiden_running.seats, cpu, counters))
			continue;
		seq_printf(file, "%.32s %u %u", seat->now->policy->table->name, seat->tape.instance, cpu);
		for (i = 0; i < EKIDEN_COUNTERS; i++)
			seq_printf(file, " %llu", counters[i]);
		seq_putc(file, '\n');
	}
}

int ekiden_proc_show(struct seq_file *file, void *unused)
{
	u64 order;

	seq_puts(file, "policy number cpu picks idles migrations refusals surprises slowed\n");
	mutex_lock(&ekiden_control);
	for (order = ekiden_is_broken() ? 0 : ekiden_rs_order(); order; order >>= 8)
		show_seat(file, &ekiden_running.seats[(order & 0xff) - 1]);
	mutex_unlock(&ekiden_control);
	return 0;
}
