// SPDX-License-Identifier: GPL-2.0-only
/* What the status says of the figures that a policy counts for people. */
#include <linux/cpumask.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include "host.h"

#define ROOM (EKIDEN_FIGURES_WORDS * sizeof(u64))

/* One CPU at a time, so that interrupts are off for as long as that takes only. */
static s64 ask(u32 policy_slot, u32 cpu, u64 *room)
{
	u64 start_ns;
	s64 len;

	preempt_disable();
	local_irq_disable();
	start_ns = ekiden_times_begin();
	len = ekiden_run_guarded(ekiden_rs_figures, policy_slot, cpu, room, ROOM, 0);
	if (len == LEFT)
		ekiden_run_guarded(ekiden_rs_faulted, policy_slot, 0, 0, 0, 0);
	ekiden_times_end(EKIDEN_TIME_FIGURES, start_ns);
	local_irq_enable();
	preempt_enable();
	return len;
}

/* Under `ekiden_control`, so that the instance stays. */
int ekiden_put_figures(char *to, size_t size, u32 policy_slot)
{
	u64 *rooms = kvzalloc(3 * ROOM, GFP_KERNEL);
	u64 *description = rooms, *sums = rooms + EKIDEN_FIGURES_WORDS, *words = sums + EKIDEN_FIGURES_WORDS;
	s64 described, len = 0, at = 0;
	u64 start_ns;
	u32 cpu;
	int i;

	if (!rooms)
		return 0;
	described = ask(policy_slot, EKIDEN_NO_CPU, description);
	if (described <= 0)
		goto out;
	for_each_possible_cpu(cpu) {
		len = ask(policy_slot, cpu, words);
		if (len < 0)
			goto out;
		for (i = 0; i < len / sizeof(u64); i++)
			sums[i] += words[i];
	}
	/* It allocates, which calls in an interrupt do, too. */
	local_irq_disable();
	start_ns = ekiden_times_begin();
	at = ekiden_run_guarded(ekiden_rs_put_figures, to, size, description, described, sums);
	ekiden_times_end(EKIDEN_TIME_FIGURES, start_ns);
	local_irq_enable();
out:
	kvfree(rooms);
	return max_t(s64, at, 0);
}
