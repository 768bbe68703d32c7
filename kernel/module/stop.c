// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every CPU stands still for a moment, so that no call into Rust is under way: an interrupt asks each, and each waits in it.
 *
 * stop_machine() has every CPU switch to a thread of its own first, which takes as long as the busiest one likes. And no CPU
 * may wait where a call begins: it may hold a run-queue lock there, for which another one spins with interrupts off, which
 * then neither answers nor comes to a call. In an interrupt, a CPU holds no lock that others want with interrupts off.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/irqflags.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/smp.h>
#include <linux/timekeeping.h>
#include "ekiden.h"

/* How long all wait for the last one before they go on and meet again later. */
#define PATIENCE_NS 1000000
/* How often. A CPU that comes to none of these meetings hangs, or nearly. */
#define TRIES 100

static struct {
	atomic_t arrived;
	atomic_t inside;	/* asked, and has not left yet */
	bool go;
} meeting;

static void stand_still(void *unused)
{
	/* What this CPU did before is seen by whoever sees that it is here. */
	smp_mb__before_atomic();
	atomic_inc(&meeting.arrived);
	while (!smp_load_acquire(&meeting.go))
		cpu_relax();
	atomic_dec(&meeting.inside);
}

static DEFINE_PER_CPU(call_single_data_t, calls) = CSD_INIT(stand_still, NULL);

/* Asks all other CPUs; how many there are, or an error. */
static int ask_others(void)
{
	int cpu, ret, others = 0;

	for_each_online_cpu(cpu) {
		if (cpu == smp_processor_id())
			continue;
		atomic_inc(&meeting.inside);
		ret = smp_call_function_single_async(cpu, per_cpu_ptr(&calls, cpu));
		if (ret) {
			atomic_dec(&meeting.inside);
			return ret;
		}
		others++;
	}
	return others;
}

/* Those who wait leave in their own time: whoever needs it looks whether they have. */
static int meet(s64 (*work)(void *), void *data, s64 *result, u64 *wait_ns)
{
	int others, ret = -ETIME;
	u64 start;

	atomic_set(&meeting.arrived, 0);
	WRITE_ONCE(meeting.go, false);
	local_irq_disable();
	start = ktime_get_mono_fast_ns();
	others = ask_others();
	while (others >= 0 && ktime_get_mono_fast_ns() - start < PATIENCE_NS) {
		if (atomic_read_acquire(&meeting.arrived) == others) {
			*result = work(data);
			ret = 0;
			break;
		}
		cpu_relax();
	}
	*wait_ns = ktime_get_mono_fast_ns() - start;
	smp_store_release(&meeting.go, true);
	local_irq_enable();
	return others < 0 ? others : ret;
}

/* Whether everyone has left. */
static bool is_over(void)
{
	unsigned int looks;

	for (looks = 0; looks < 1000 && atomic_read(&meeting.inside); looks++)
		usleep_range(100, 200);
	return !atomic_read(&meeting.inside);
}

/*
 * Runs `work` while all other CPUs stand still, with interrupts off. `wait_ns` is the time from when the first one stopped until
 * all may go on: none waits longer. Serialised by the caller, who keeps CPUs from coming and going.
 */
int ekiden_stop_cpus(s64 (*work)(void *), void *data, s64 *result, u64 *wait_ns)
{
	int tries, ret = -ETIME;

	for (tries = 0; tries < TRIES && ret && is_over(); tries++) {
		if (tries)
			usleep_range(500, 2000);
		ret = meet(work, data, result, wait_ns);
	}
	return ret;
}

/* Before the code goes away. */
void ekiden_stop_ended(void)
{
	while (!is_over())
		;
	synchronize_rcu();
}
