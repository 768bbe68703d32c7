// SPDX-License-Identifier: GPL-2.0-only
/* What the status says of queues. */
#include <linux/kernel.h>
#include <linux/pid.h>
#include "queues.h"

/* Queues of a policy that are shown one by one, the oldest first. */
#define QUEUES_SHOWN 8

static int put_sums(char *to, size_t size, const struct sums *sums)
{
	return scnprintf(to, size,
			 ",\"hints\":%llu,\"refused\":%llu,\"nonsense\":%llu,\"full\":%llu,\"notices\":%llu,\"lost\":%llu",
			 sums->hints, sums->refused, sums->nonsense, sums->full, sums->notices, sums->lost);
}

static bool is_shown(const struct queue *queue, u32 policy_slot)
{
	return queue->policy_slot == policy_slot && queue->known && READ_ONCE(queue->state) == QUEUE_OPEN;
}

static int put_types(char *to, size_t size, const char *name, const struct ekiden_queue_side *side)
{
	return scnprintf(to, size, "\"%s\":{\"fingerprint\":%llu,\"bytes\":%u}", name, side->fingerprint, side->bytes);
}

/*
 * Under `ekiden_control`. What a policy's queues are made of; sums of what those have counted that are and were open; and the
 * same of some that are.
 */
int ekiden_put_queues(char *to, size_t size, u32 policy_slot)
{
	const struct ekiden_queue_geometry *types = &ekiden_running.policy_slots[policy_slot].now->policy->table->types;
	struct sums sums = ekiden_queues_past[policy_slot].sums;
	const char *comma = "";
	struct queue *queue;
	unsigned long number;
	u32 open = 0, shown = 0;
	int at = 0;

	if (types->up.bytes || types->down.bytes) {
		at += scnprintf(to + at, size - at, ",\"types\":{");
		at += put_types(to + at, size - at, "hint", &types->up);
		at += scnprintf(to + at, size - at, ",");
		at += put_types(to + at, size - at, "notice", &types->down);
		at += scnprintf(to + at, size - at, "}");
	}
	if (!ekiden_queues_past[policy_slot].opened)
		return at;
	xa_for_each(&ekiden_queues, number, queue) {
		if (!is_shown(queue, policy_slot))
			continue;
		open++;
		ekiden_queue_add_sums(&sums, queue);
	}
	at += scnprintf(to + at, size - at, ",\"queues\":{\"opened\":%llu,\"open\":%u", ekiden_queues_past[policy_slot].opened,
			open);
	at += put_sums(to + at, size - at, &sums);
	at += scnprintf(to + at, size - at, ",\"list\":[");
	xa_for_each(&ekiden_queues, number, queue) {
		struct sums own = {};

		if (!is_shown(queue, policy_slot) || shown++ >= QUEUES_SHOWN)
			continue;
		ekiden_queue_add_sums(&own, queue);
		at += scnprintf(to + at, size - at, "%s{\"queue\":%u,\"owner\":%u", comma, queue->number, pid_nr(queue->owner));
		at += put_sums(to + at, size - at, &own);
		at += scnprintf(to + at, size - at, "}");
		comma = ",";
	}
	return at + scnprintf(to + at, size - at, "]}");
}
