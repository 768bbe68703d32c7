// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every CPU stands still for a moment, so that no call into Rust is under way: an interrupt asks each, and each waits in it.
 * That takes microseconds where all CPUs run. A CPU may have lost its processor to a hypervisor: all go on then and meet
 * again, with more patience each time, until all are there. Nothing is refused because a CPU is late; a signal ends it.
 *
 * stop_machine() has every CPU switch to a thread of its own first, which takes as long as the busiest CPU needs; and
 * it has the caller sleep in the middle, as a task of the policy that is replaced meanwhile. So it is no last resort either:
 * on CPUs that run at once it left that task without a CPU for half a minute, and sched_ext took the policy out, which is
 * worse than to be late. And no CPU may wait where a call begins: it may hold a run-queue lock there, for which another one
 * spins with interrupts off, which then neither answers nor comes to a call. In an interrupt, a CPU holds no lock that
 * others want with interrupts off.
 */
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/irqflags.h>
#include <linux/minmax.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/smp.h>
#include <linux/timekeeping.h>
#include "interface.h"

/* How long all wait for the last one before they go on and meet again later. */
static unsigned int meet_patience_us = 1000;
module_param(meet_patience_us, uint, 0644);
MODULE_PARM_DESC(
	meet_patience_us,
	"how long CPUs wait in an interrupt for the last one, when all are to stand still, before they go on and meet again");

/*
 * CPUs stand still for as long at most, for the first minute. Where a processor is shared by three that want it, each is away
 * for two slices of the hypervisor's scheduler, which are three to eight milliseconds.
 */
#define MEET_PATIENCE_US_MAX 20000
/* Attempts before their patience doubles. */
#define TRIES 2
/* Where there are so many CPUs for each processor that they have not met by then, they stand still for longer. */
#define MEET_LONGER_AFTER_NS (60ULL * NSEC_PER_SEC)
#define MEET_PATIENCE_US_LAST 1000000

struct ekiden_stops ekiden_stops = { .wait_max_cpu = -1, .took_max_cpu = -1, .late_cpu = -1 };

/* What a stop has come to so far. */
struct stop {
	u64 wait_ns;  /* how long its longest meeting was */
	int wait_cpu; /* for which CPU that one was given up; -1 if it was not */
	int late_cpu; /* for which CPU one was given up last; -1 if none was */
};

static struct {
	atomic_t arrived;
	atomic_t inside; /* asked, and has not left yet */
	u32 number;
	bool go;
} meeting;

/* The last meeting to which this CPU came. */
static DEFINE_PER_CPU(u32, came_to);

/* Ends when the CPU that asked has done its work, which it does with interrupts off, or does not wait any longer. */
static void stand_still(void *unused)
{
	__this_cpu_write(came_to, READ_ONCE(meeting.number));
	/* A CPU that sees that this one is here sees what it did before. */
	smp_mb__before_atomic();
	atomic_inc(&meeting.arrived);
	/* Pairs with the release of `go`: what was changed while all stood still is seen. */
	while (!smp_load_acquire(&meeting.go))
		cpu_relax();
	/* Last: the CPU that asks sets the rest anew when all have left. */
	atomic_dec_return_release(&meeting.inside);
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

/* One that has not come, or -1. */
static int late_cpu(void)
{
	int cpu;

	for_each_online_cpu(cpu)
		if (cpu != smp_processor_id() && READ_ONCE(per_cpu(came_to, cpu)) != meeting.number)
			return cpu;
	return -1;
}

/* A meeting counts, be it given up or not: CPUs have stood still either way. */
static void note_meeting(struct stop *stop, u64 wait_ns, int late_cpu)
{
	if (late_cpu >= 0)
		stop->late_cpu = late_cpu;
	if (wait_ns < stop->wait_ns)
		return;
	stop->wait_ns = wait_ns;
	stop->wait_cpu = late_cpu;
}

/* CPUs that wait leave in their own time: is_over() says whether all have. */
static int meet(s64 (*work)(void *), void *data, s64 *result, struct stop *stop, u64 patience_ns)
{
	int others, ret = -ETIME;
	u64 start;

	atomic_set(&meeting.arrived, 0);
	meeting.number++;
	WRITE_ONCE(meeting.go, false);
	local_irq_disable();
	start = ktime_get_mono_fast_ns();
	others = ask_others();
	while (others >= 0) {
		if (atomic_read_acquire(&meeting.arrived) == others) {
			*result = work(data);
			ret = 0;
			break;
		}
		/* After the look: it may be this processor that was away. */
		if (ktime_get_mono_fast_ns() - start >= patience_ns)
			break;
		cpu_relax();
	}
	note_meeting(stop, ktime_get_mono_fast_ns() - start, ret ? late_cpu() : -1);
	/* Pairs with the acquire in stand_still(). */
	smp_store_release(&meeting.go, true);
	local_irq_enable();
	return others < 0 ? others : ret;
}

/* Whether all CPUs have left, after a few milliseconds at most. */
static bool is_over(void)
{
	unsigned int looks;

	for (looks = 0; looks < 20 && atomic_read_acquire(&meeting.inside); looks++)
		usleep_range(100, 200);
	return !atomic_read_acquire(&meeting.inside);
}

/* Returns whether none has taken longer. */
static bool took(u64 *last, u64 *most, u64 ns)
{
	bool is_longest = ns >= *most;

	WRITE_ONCE(*last, ns);
	if (is_longest)
		WRITE_ONCE(*most, ns);
	return is_longest;
}

static void note_stop(const struct stop *stop, u64 took_ns)
{
	if (took(&ekiden_stops.took_ns, &ekiden_stops.took_ns_max, took_ns))
		WRITE_ONCE(ekiden_stops.took_max_cpu, stop->late_cpu);
	if (took(&ekiden_stops.wait_ns, &ekiden_stops.wait_ns_max, stop->wait_ns))
		WRITE_ONCE(ekiden_stops.wait_max_cpu, stop->wait_cpu);
	if (stop->late_cpu >= 0)
		WRITE_ONCE(ekiden_stops.late_cpu, stop->late_cpu);
}

/* The most that CPUs wait for the last one, if they have tried to meet since `start`. */
static u64 patience_most_us(u64 start)
{
	bool is_long = ktime_get_mono_fast_ns() - start >= MEET_LONGER_AFTER_NS;

	return is_long ? MEET_PATIENCE_US_LAST : MEET_PATIENCE_US_MAX;
}

/*
 * Runs `work` while all other CPUs stand still, with interrupts off. `wait_ns` is the time from when the first one stopped until
 * all may go on, in the longest meeting, those that were given up among them: no CPU waits longer without a break. It tries until
 * all have met, or a signal comes: -EINTR, and `work` has not run. Serialised by the caller, which does not hold cpus_read_lock().
 */
int ekiden_stop_cpus(s64 (*work)(void *), void *data, s64 *result, u64 *wait_ns)
{
	u64 start = ktime_get_mono_fast_ns();
	u64 patience_us = clamp(READ_ONCE(meet_patience_us), 1, MEET_PATIENCE_US_MAX);
	struct stop stop = { .wait_cpu = -1, .late_cpu = -1 };
	int tries, ret = -ETIME;

	for (tries = 0; ret && !(tries && signal_pending(current)); tries++) {
		if (tries)
			usleep_range(500, 2000);
		if (tries && !(tries % TRIES))
			patience_us = min(2 * patience_us, patience_most_us(start));
		if (!is_over())
			continue;
		cpus_read_lock();
		ret = meet(work, data, result, &stop, patience_us * NSEC_PER_USEC);
		cpus_read_unlock();
	}
	if (ret || tries > TRIES)
		ekiden_stops.slow++;
	else
		ekiden_stops.quick++;
	note_stop(&stop, ktime_get_mono_fast_ns() - start);
	*wait_ns = stop.wait_ns;
	return ret ? -EINTR : 0;
}

/*
 * What events did not see is over when this returns. Each of them is in an operation of sched_ext, an interrupt or a
 * kfunc, with its CPU kept. So no CPU has to stand still, and one that has lost its processor is waited for, however long
 * that takes. Returns how long it took.
 */
u64 ekiden_wait_for_events(void)
{
	u64 start = ktime_get_mono_fast_ns();

	synchronize_rcu();
	return ktime_get_mono_fast_ns() - start;
}

/* No CPU stood still for a change, which all have seen after so long. Serialised by the caller. */
void ekiden_note_grace(u64 ns)
{
	ekiden_stops.graces++;
	took(&ekiden_stops.grace_ns, &ekiden_stops.grace_ns_max, ns);
}

/* Before the code goes away. */
void ekiden_stop_ended(void)
{
	while (!is_over())
		;
	synchronize_rcu();
}
