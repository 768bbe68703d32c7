// SPDX-License-Identifier: GPL-2.0-only
/*
 * A policy that lets a task wait for too long ends alone, before sched_ext ends them all. An interrupt looks, so that it depends
 * neither on a CPU that is busy nor on a task that may starve itself.
 */
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/moduleparam.h>
#include <linux/notifier.h>
#include <linux/rcupdate.h>
#include <linux/suspend.h>
#include "host.h"

/* What fairness explains is less than sched_ext's own thirty seconds, too, by more than the time between two scans. */
static unsigned int starved_after_ms = 8000;
module_param(starved_after_ms, uint, 0644);
MODULE_PARM_DESC(
	starved_after_ms,
	"how long a task may wait for a CPU before its policy is taken out, unless its fair share explains more; 0 for no limit");

/* Scans over the task table that see a task which has waited for that long. */
#define SCANS 8
/* Pause between some entries and the next, in nanoseconds. */
#define GO_ON_AFTER_NS 50000

static struct {
	struct hrtimer timer;
	u32 number;
	u64 next;
} scan;

static u32 apart_ms(void)
{
	u32 after_ms = READ_ONCE(starved_after_ms);

	/* If it is switched on again, that is seen in time. */
	return after_ms ? max(after_ms / SCANS, 1U) : 1000;
}

/*
 * From before it synchronises file systems for a suspend until it is back, the kernel asks no policy: sched_ext bypasses
 * them, and what waits meanwhile waits for the kernel. Scans do not count then.
 */
static bool is_bypassed;

static int on_suspend(struct notifier_block *block, unsigned long event, void *unused)
{
	switch (event) {
	case PM_HIBERNATION_PREPARE:
	case PM_SUSPEND_PREPARE:
	case PM_RESTORE_PREPARE:
		WRITE_ONCE(is_bypassed, true);
		break;
	case PM_POST_HIBERNATION:
	case PM_POST_SUSPEND:
	case PM_POST_RESTORE:
		WRITE_ONCE(is_bypassed, false);
		break;
	}
	return NOTIFY_OK;
}

static struct notifier_block suspends = { .notifier_call = on_suspend };

void ekiden_watch_suspends(void)
{
	/* It fails for a notifier only that is registered already. */
	register_pm_notifier(&suspends);
}

void ekiden_watch_no_suspends(void)
{
	unregister_pm_notifier(&suspends);
}

/* A task that waits does not come out of it. */
bool ekiden_c_is_in_read_section(const struct task_struct *p)
{
#ifdef CONFIG_PREEMPT_RCU
	return p && READ_ONCE(p->rcu_read_lock_nesting) > 0;
#else
	return false;
#endif
}

/* Whether it has come to the end. */
static bool scan_on(void)
{
	struct ekiden_outcome outcome = {};
	u64 start_ns;
	s64 next;

	if (!READ_ONCE(starved_after_ms) || !READ_ONCE(ekiden_running.attached) || READ_ONCE(is_bypassed))
		return true;
	if (!scan.next && !++scan.number)
		scan.number = 1;
	start_ns = ekiden_times_begin();
	next = ekiden_run_guarded(ekiden_rs_find_starved, scan.number, SCANS, apart_ms(), scan.next, &outcome);
	ekiden_times_end(EKIDEN_TIME_SCAN, start_ns);
	/* The engine has panicked; whatever comes next hears of it. */
	scan.next = next > 0 ? next : 0;
	ekiden_carry_out(&outcome);
	return !scan.next;
}

static enum hrtimer_restart look(struct hrtimer *timer)
{
	bool at_end;

	rcu_read_lock();
	at_end = scan_on();
	rcu_read_unlock();
	hrtimer_forward_now(timer, at_end ? ms_to_ktime(apart_ms()) : ns_to_ktime(GO_ON_AFTER_NS));
	return HRTIMER_RESTART;
}

void ekiden_watch_tasks(void)
{
	hrtimer_setup(&scan.timer, look, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
	scan.next = 0;
	hrtimer_start(&scan.timer, ms_to_ktime(apart_ms()), HRTIMER_MODE_REL_HARD);
}

void ekiden_watch_no_tasks(void)
{
	hrtimer_cancel(&scan.timer);
}
