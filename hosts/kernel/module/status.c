// SPDX-License-Identifier: GPL-2.0-only
/*
 * What /dev/ekiden says when it is read, by any user, and /proc/ekiden, for scripts.
 */
#include <linux/atomic.h>
#include <linux/capability.h>
#include <linux/cpumask.h>
#include <linux/fs.h>
#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
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

/* What Rust says of the engine, or of the policy in the policy slot of this number, counted from 1. */
static int put_counts(char *to, size_t size, u32 policy_slot)
{
	u64 start_ns;
	s64 len;

	if (size < SZ_1K)
		return 0;
	/* It takes locks that calls in an interrupt may want. */
	local_irq_disable();
	start_ns = ekiden_times_begin();
	len = ekiden_run_guarded(ekiden_rs_status, to, size, policy_slot, 0, 0);
	ekiden_times_end(EKIDEN_TIME_STATUS, start_ns);
	local_irq_enable();
	return len > 0 ? len : 0;
}

/* Limits the lists of instances of all policies together, as the whole status has STATUS_LEN bytes. */
#define INSTANCES_LEN SZ_8K

/* Longer parameters are not told. */
static bool params_are_told(size_t params_len)
{
	return params_len <= SZ_1K;
}

/* What an instance of these parameters takes at most. */
static size_t instance_len(size_t params_len)
{
	return (params_are_told(params_len) ? 2 * params_len : 0) + 160;
}

/*
 * The name is left empty where the parameters are not told: readers take the instance as unknown. The key is `name`, as framework/include
 * looks for policies by `"policy"`.
 */
static int put_instance(char *to, size_t size, u32 number, const char *name, const char *params, size_t params_len)
{
	bool known = params_are_told(params_len);
	int at = scnprintf(to, size, "{\"number\":%u,\"name\":\"%.32s\"", number, known ? name : "");

	at += put_text(to + at, size - at, "params", params, known ? params_len : 0);
	return at + scnprintf(to + at, size - at, "}");
}

/* The instances whose calls may still be in the rings, the newest first, up to the first for which there is no room. */
static int put_instances(char *to, size_t size, const struct ekiden_policy_slot *policy_slot)
{
	const struct ekiden_instance *running[] = { policy_slot->faulted, policy_slot->now };
	size_t room = min_t(size_t, size, INSTANCES_LEN / max(ekiden_running.nr, 1u));
	u32 i, kept = min_t(u32, policy_slot->nr_past, EKIDEN_PAST_INSTANCES);
	int at = scnprintf(to, size, ",\"instances\":[");
	const char *comma = "";

	for (i = 0; i < ARRAY_SIZE(running); i++) {
		if (!running[i])
			continue;
		if (room < at + instance_len(running[i]->args.params_len))
			goto out;
		at += scnprintf(to + at, size - at, "%s", comma);
		at += put_instance(to + at, size - at, running[i]->number, running[i]->policy->table->name, running[i]->params,
				   running[i]->args.params_len);
		comma = ",";
	}
	for (i = 1; i <= kept; i++) {
		const struct ekiden_past_instance *past = &policy_slot->past[(policy_slot->nr_past - i) % EKIDEN_PAST_INSTANCES];

		if (room < at + instance_len(past->params_len))
			goto out;
		at += scnprintf(to + at, size - at, "%s", comma);
		at += put_instance(to + at, size - at, past->number, past->name, past->params, past->params_len);
		comma = ",";
	}
out:
	return at + scnprintf(to + at, size - at, "]");
}

static int put_policy_slot(char *to, size_t size, u32 number)
{
	const struct ekiden_policy_slot *policy_slot = &ekiden_running.policy_slots[number];
	const struct ekiden_policy_table *table = policy_slot->now->policy->table;
	int at = scnprintf(to, size, "\"policy\":\"%.32s\",\"slot\":%u,\"calls\":%llu", table->name, number, table->calls);

	at += scnprintf(to + at, size - at,
			",\"module\":\"%s\",\"upgrades\":%llu,\"upgrade_wait_ns\":%llu,\"upgrade_wait_ns_max\":%llu",
			module_name(policy_slot->now->policy->owner), policy_slot->upgrades, policy_slot->wait_ns,
			policy_slot->wait_ns_max);
	at += scnprintf(to + at, size - at,
			",\"instance\":%u,\"ticks_khz\":%u,\"call_log_records\":%zu,\"call_log_cpus\":%u,\"call_log_runs\":%s",
			policy_slot->call_log.instance, policy_slot->call_log.ticks_khz, policy_slot->call_log.records,
			policy_slot->call_log.cpus, policy_slot->call_log_runs ? "true" : "false");
	if (policy_slot->access == EKIDEN_CREATE_GROUP)
		at += scnprintf(to + at, size - at, ",\"open_to_group\":%u", from_kgid_munged(&init_user_ns, policy_slot->group));
	at += scnprintf(to + at, size - at, ",\"open\":%s",
			policy_slot->access == EKIDEN_CREATE_OPEN || ekiden_is_default(policy_slot) ? "true" : "false");
	at += put_text(to + at, size - at, "params", policy_slot->now->params,
		       min_t(size_t, policy_slot->now->args.params_len, SZ_1K));
	at += put_instances(to + at, size - at, policy_slot);
	at += ekiden_put_queues(to + at, size - at, number);
	if (policy_slot->faulted_ns)
		at += scnprintf(to + at, size - at, ",\"faulted_ns\":%llu", policy_slot->faulted_ns);
	if (policy_slot->fault && policy_slot->fault->len)
		at += put_text(to + at, size - at, "fault", policy_slot->fault->bytes, policy_slot->fault->len);
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
			 "\"wait_max_cpu\":%d,\"took_ns\":%llu,\"took_ns_max\":%llu,\"took_max_cpu\":%d,\"late_cpu\":%d,"
			 "\"graces\":%llu,\"grace_ns\":%llu,\"grace_ns_max\":%llu}",
			 stops->quick, stops->slow, stops->wait_ns, stops->wait_ns_max, stops->wait_max_cpu, stops->took_ns,
			 stops->took_ns_max, stops->took_max_cpu, stops->late_cpu, stops->graces, stops->grace_ns,
			 stops->grace_ns_max);
}

static int put_policy_slots(char *to, size_t size)
{
	u64 order = ekiden_is_broken() ? 0 : ekiden_rs_order();
	int at = scnprintf(to, size, ",\"policies\":[");
	const char *comma = "";

	for (; order; order >>= 8) {
		at += scnprintf(to + at, size - at, "%s{", comma);
		at += put_policy_slot(to + at, size - at, (order & 0xff) - 1);
		at += scnprintf(to + at, size - at, "}");
		comma = ",";
	}
	return at + scnprintf(to + at, size - at, "]");
}

/* ---- when to read it again ---- */

/* Counts what has happened to policies. */
static atomic_t changes;
static DECLARE_WAIT_QUEUE_HEAD(readers);

static void wake_readers(struct irq_work *work)
{
	wake_up_all(&readers);
}

/* Where a policy is taken out, a run queue may be locked. */
static struct irq_work waking = IRQ_WORK_INIT(wake_readers);

void ekiden_wake_readers(void)
{
	/* A CPU that has gone does no irq_work until it goes the next time, and none would be queued elsewhere as long as it waits there. */
	if (cpu_online(raw_smp_processor_id()))
		irq_work_queue(&waking);
}

void ekiden_status_changed(void)
{
	/* Fully ordered: a CPU that sees the count sees the change. */
	atomic_inc_return(&changes);
	ekiden_wake_readers();
}

void ekiden_status_ended(void)
{
	irq_work_sync(&waking);
}

__poll_t ekiden_control_poll(struct file *file, struct poll_table_struct *table)
{
	const struct seq_file *status = file->private_data;
	__poll_t ready = EPOLLIN | EPOLLRDNORM;

	/* All of them are woken up in one interrupt: others could make that as long as they like. */
	if (!file_ns_capable(file, &init_user_ns, CAP_SYS_ADMIN))
		return ready;
	poll_wait(file, &readers, table);
	if (status->poll_event != atomic_read(&changes))
		ready |= EPOLLPRI;
	return ready;
}

/* ---- the text ---- */

/*
 * The one that gets the tasks for which no policy was chosen comes first and by itself; then all of them, in order. All
 * of it is of one moment, in however many pieces a program reads it.
 */
static int control_show(struct seq_file *file, void *unused)
{
	char *text = kvmalloc(STATUS_LEN, GFP_KERNEL);
	char fault[EKIDEN_TEXT_LEN + 1];
	int at, len;

	if (!text)
		return -ENOMEM;
	/* Not later: what changes from here on may be missing in the text. */
	file->poll_event = atomic_read_acquire(&changes);
	mutex_lock(&ekiden_control);
	at = scnprintf(text, STATUS_LEN, "{\"abi\":%u", EKIDEN_ABI_VERSION);
	if (ekiden_running.nr) {
		at += scnprintf(text + at, STATUS_LEN - at, ",\"attached\":%s",
				READ_ONCE(ekiden_running.attached) ? "true" : "false");
		if (!ekiden_is_broken())
			at += put_counts(text + at, STATUS_LEN - at, 0);
		at += put_policy_slots(text + at, STATUS_LEN - at);
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
	int ret;

	/* The miscdevice, which misc_open() left there; seq_open() warns of anything. */
	file->private_data = NULL;
	ret = single_open(file, control_show, NULL);
	if (!ret)
		((struct seq_file *)file->private_data)->poll_event = atomic_read(&changes);
	return ret;
}

/* ---- /proc/ekiden: counters for scripts ---- */

static void show_policy_slot(struct seq_file *file, const struct ekiden_policy_slot *policy_slot)
{
	u64 counters[EKIDEN_COUNTERS];
	u32 cpu;
	int i;

	for_each_possible_cpu(cpu) {
		if (!ekiden_rs_counters(policy_slot - ekiden_running.policy_slots, cpu, counters))
			continue;
		seq_printf(file, "%.32s %u %u", policy_slot->now->policy->table->name, policy_slot->call_log.instance, cpu);
		for (i = 0; i < EKIDEN_COUNTERS; i++)
			seq_printf(file, " %llu", counters[i]);
		seq_putc(file, '\n');
	}
}

int ekiden_proc_show(struct seq_file *file, void *unused)
{
	u64 order;

	seq_puts(file, "policy number cpu picks idles migrations refusals unexpected slowed turns ticks\n");
	mutex_lock(&ekiden_control);
	for (order = ekiden_is_broken() ? 0 : ekiden_rs_order(); order; order >>= 8)
		show_policy_slot(file, &ekiden_running.policy_slots[(order & 0xff) - 1]);
	mutex_unlock(&ekiden_control);
	return 0;
}
