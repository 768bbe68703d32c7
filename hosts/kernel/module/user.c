// SPDX-License-Identifier: GPL-2.0-only
/*
 * When groups of tasks get and use up their CPU time, and where a task that has none left is found in user mode, in which it
 * holds no lock.
 */
#include <linux/cpu.h>
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/ktime.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/sched/task_stack.h>
#include <linux/user-return-notifier.h>
#include <asm/irq_regs.h>
#include <asm/syscall.h>
#include "host.h"

/* When groups of tasks get CPU time again, and when a task that runs has used up the last of it: the earliest wish of this CPU. */

static DEFINE_PER_CPU(struct hrtimer, refills);

/* A task has returned to user mode on this CPU, where that was to be looked at. */
static DEFINE_PER_CPU(bool, has_returned);

static void deliver_refill(void)
{
	struct ekiden_event event = {
		.kind = EKIDEN_REFILL,
		.cpu = smp_processor_id(),
		.flags = this_cpu_xchg(has_returned, false) ? EKIDEN_REFILL_RETURNED : 0,
	};
	struct ekiden_outcome outcome = {};

	rcu_read_lock();
	ekiden_deliver(&event, &outcome, NULL, 0);
	if (outcome.timer_ns)
		ekiden_do_arm_timer(event.cpu, outcome.timer_ns);
	ekiden_carry_out(&outcome);
	rcu_read_unlock();
}

static enum hrtimer_restart refill(struct hrtimer *timer)
{
	deliver_refill();
	/* The engine has armed it again if need be. */
	return HRTIMER_NORESTART;
}

void ekiden_c_refill_at(u64 at_ns)
{
	struct hrtimer *timer = this_cpu_ptr(&refills);

	if (!hrtimer_is_queued(timer) || ktime_to_ns(hrtimer_get_expires(timer)) > at_ns)
		hrtimer_start(timer, ns_to_ktime(at_ns), HRTIMER_MODE_ABS_PINNED_HARD);
}

#ifdef CONFIG_USER_RETURN_NOTIFIER

/* Fires once, when this CPU next goes to user mode, whatever it runs by then; in the list of this CPU if `waits`. */
static DEFINE_PER_CPU(
	struct returning {
		struct user_return_notifier notifier;
		bool waits;
	},
	returning);

/*
 * The interrupt that on_user_return() sends this CPU. The kernel does not say what such an interrupt has found; but x86
 * serves one that finds user mode on the task's own stack, and any other on a stack of its own.
 */
static void look_at_user(struct irq_work *work)
{
	bool is_user = object_is_on_stack(&is_user);
	struct pt_regs *before = set_irq_regs(is_user ? task_pt_regs(current) : NULL);

	this_cpu_write(has_returned, true);
	deliver_refill();
	set_irq_regs(before);
}

static DEFINE_PER_CPU(struct irq_work, look) = IRQ_WORK_INIT_HARD(look_at_user);

/*
 * The last thing before user mode, with interrupts off: the interrupt comes with the first instruction there. A timer may
 * come later, in the next system call, and a task that makes one after the other would never be found in user mode.
 */
static void on_user_return(struct user_return_notifier *notifier)
{
	struct returning *own = container_of(notifier, struct returning, notifier);
	unsigned long flags;

	local_irq_save(flags);
	if (own->waits) {
		own->waits = false;
		user_return_notifier_unregister(notifier);
		irq_work_queue(this_cpu_ptr(&look));
	}
	local_irq_restore(flags);
}

bool ekiden_c_look_at_return(void)
{
	struct returning *own = this_cpu_ptr(&returning);

	if (!own->waits) {
		own->notifier.on_user_return = on_user_return;
		own->waits = true;
		user_return_notifier_register(&own->notifier);
	}
	return true;
}

static void forget_return(void *unused)
{
	struct returning *own = this_cpu_ptr(&returning);

	if (own->waits)
		user_return_notifier_unregister(&own->notifier);
	own->waits = false;
}

/* A CPU that is away goes nowhere, and what is in its list stays there. */
static void forget_returns(void)
{
	int cpu;

	cpus_read_lock();
	on_each_cpu(forget_return, NULL, true);
	for_each_possible_cpu(cpu) {
		struct returning *own = per_cpu_ptr(&returning, cpu);

		if (own->waits)
			hlist_del(&own->notifier.link);
		own->waits = false;
		irq_work_sync(per_cpu_ptr(&look, cpu));
	}
	cpus_read_unlock();
}

#else

bool ekiden_c_look_at_return(void)
{
	return false;
}

static void forget_returns(void)
{
}

#endif

/*
 * Where an interrupt has found the task that this CPU runs in user mode. If it gives way there and then, it has no lock of
 * the kernel's, and is in no RCU read section. A moment later it may be in a system call or a page fault.
 */
static DEFINE_PER_CPU(
	struct user_place {
		const struct task_struct *task;
		unsigned long ip;
		u64 at_ns;
	},
	user_place);

/* From the interrupt up to the call of the scheduler on the way out of the one that it has asked for; an emulator is slow. */
#define FRESH_NS NSEC_PER_MSEC

u32 ekiden_c_interrupted(const struct task_struct *p)
{
	struct pt_regs *regs = get_irq_regs();
	struct user_place *place = this_cpu_ptr(&user_place);

	place->task = NULL;
	if (current != p)
		return 0;
	if (!in_hardirq() || !regs || !user_mode(regs))
		return 1;
	*place = (struct user_place){ .task = p, .ip = instruction_pointer(regs), .at_ns = ekiden_c_now_ns() };
	return 2;
}

bool ekiden_c_is_at_user(const struct task_struct *p)
{
	const struct user_place *place = this_cpu_ptr(&user_place);
	struct pt_regs *regs;

	if (!p || current != p || place->task != p)
		return false;
	regs = task_pt_regs(p);
	return instruction_pointer(regs) == place->ip && syscall_get_nr(current, regs) == -1 &&
	       ekiden_c_now_ns() - place->at_ns < FRESH_NS;
}

void ekiden_set_up_refills(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		hrtimer_setup(per_cpu_ptr(&refills, cpu), refill, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_HARD);
}

void ekiden_cancel_refills(void)
{
	int cpu;

	forget_returns();
	for_each_possible_cpu(cpu)
		hrtimer_cancel(per_cpu_ptr(&refills, cpu));
}
