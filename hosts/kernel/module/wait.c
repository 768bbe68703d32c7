// SPDX-License-Identifier: GPL-2.0-only
/*
 * How a call waits for another one to let go of a lock. Waiting is not looping: it burns no fuel, and the other call is
 * found out by its end, its fault, or by what it waits for itself (framework/ekiden/src/order.rs). The clock is the last
 * resort, and it stands still while any processor is away.
 */
#include <linux/cpumask.h>
#include <linux/minmax.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/timekeeping.h>
#include "host.h"

static unsigned int lock_wait_ms = 2000;
module_param(lock_wait_ms, uint, 0644);
MODULE_PARM_DESC(lock_wait_ms,
		 "how long a call may wait for a lock, as the last resort; 1 to 8000, not counting what the hypervisor takes");

/* The kernel takes a CPU with interrupts off for hung after ten seconds. */
#define LOCK_WAIT_MS_MAX 8000
/* Looks from one at the clock to the next. */
#define LOOKS_APART 16
/* Between two looks at the clock no more than this counts: what is longer, this processor was away itself. */
#define SLICE_NS_MAX 1000000
/* More than it takes to look once. */
#define FUEL_TO_LOOK (1 << 24)

/* Mirrors hosts/kernel/rt/src/wait.rs. */
struct ekiden_wait {
	u64 fuel; /* what it had before */
	u64 looks;
	u64 last_ns;   /* the last look at the clock */
	u64 waited_ns; /* what counts */
};

/* The answers of ekiden_wait_look(). */
enum { GO_ON, TOO_LONG, OVER };

void ekiden_wait_begin(struct ekiden_wait *wait)
{
	*wait = (struct ekiden_wait){ .fuel = this_cpu_read(ekiden_fuel) };
	this_cpu_write(ekiden_fuel, FUEL_TO_LOOK);
}
EXPORT_SYMBOL_GPL(ekiden_wait_begin);

void ekiden_wait_end(const struct ekiden_wait *wait)
{
	this_cpu_write(ekiden_fuel, wait->fuel);
}
EXPORT_SYMBOL_GPL(ekiden_wait_end);

/* Whether the hypervisor says of any processor that it does not run. */
static bool any_is_away(void)
{
	int cpu;

	for_each_online_cpu(cpu)
		if (vcpu_is_preempted(cpu))
			return true;
	return false;
}

u32 ekiden_wait_look(struct ekiden_wait *wait)
{
	u64 now_ns, slice_ns;

	this_cpu_write(ekiden_fuel, FUEL_TO_LOOK);
	if (ekiden_is_broken())
		return OVER;
	if (wait->looks++ % LOOKS_APART)
		return GO_ON;
	now_ns = ktime_get_mono_fast_ns();
	slice_ns = wait->last_ns ? now_ns - wait->last_ns : 0;
	/* Looking at every processor takes a while: not more often than it may count. */
	if (wait->last_ns && slice_ns < SLICE_NS_MAX / 10)
		return GO_ON;
	wait->last_ns = now_ns;
	if (!any_is_away())
		wait->waited_ns += min_t(u64, slice_ns, SLICE_NS_MAX);
	if (wait->waited_ns < clamp(READ_ONCE(lock_wait_ms), 1, LOCK_WAIT_MS_MAX) * NSEC_PER_MSEC)
		return GO_ON;
	return TOO_LONG;
}
EXPORT_SYMBOL_GPL(ekiden_wait_look);
