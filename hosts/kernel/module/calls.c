// SPDX-License-Identifier: GPL-2.0-only
/*
 * What BPF and Rust call: events go in through a guard, faults come out, timers go off.
 */
#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/workqueue.h>
#include "host.h"

/* Where the call under way was entered, and its fuel; policy modules look at both (hosts/kernel/fuel/src/lib.rs). */
DEFINE_PER_CPU(unsigned long, ekiden_guard_sp);
EXPORT_PER_CPU_SYMBOL_GPL(ekiden_guard_sp);
DEFINE_PER_CPU(long, ekiden_fuel);
EXPORT_PER_CPU_SYMBOL_GPL(ekiden_fuel);

/* ---- faults ---- */

/* The policy that has just panicked on this CPU, until the engine hears of it. */
static DEFINE_PER_CPU(const struct ekiden_instance *, faulted);

/* The newest reason for which a policy was taken out; and that of the engine, for which each CPU has room. */
static const struct ekiden_text *newest_reason;
static const struct ekiden_text *engine_reason;
static DEFINE_PER_CPU(struct ekiden_text, engine_words);
static bool broken;

bool ekiden_is_broken(void)
{
	/* Pairs with the release in ekiden_c_fault(): a CPU that reads true also sees the reason. */
	return smp_load_acquire(&broken);
}

bool ekiden_is_over(void)
{
	return ekiden_is_broken() || !ekiden_rs_any_alive();
}

void ekiden_begin_anew(void)
{
	newest_reason = NULL;
	engine_reason = NULL;
	broken = false;
}

void ekiden_keep_reason(const struct ekiden_text *text)
{
	static struct ekiden_text kept;

	if (text && newest_reason == text) {
		kept = *text;
		newest_reason = &kept;
	}
}

/* The first reason stays. It is complete when other CPUs see it, so none waits for one that is about to write. */
static void give_first(const struct ekiden_text **reason, struct ekiden_text *words, const char *text, size_t len)
{
	if (READ_ONCE(*reason))
		return;
	ekiden_set_text(words, text, len);
	cmpxchg(reason, NULL, words);
}

static struct ekiden_instance *instance_of(const struct ekiden_host_table *host)
{
	return container_of((struct ekiden_host_table *)host, struct ekiden_instance, host);
}

/* Before any other CPU can see that the policy has panicked. */
void ekiden_keep_first(const struct ekiden_host_table *host, const char *text, size_t len)
{
	struct ekiden_instance *instance = instance_of(host);

	give_first(&instance->reason, this_cpu_ptr(instance->words), text, len);
}

/*
 * Out of the innermost guarded call. These never return, which the function graph tracer, that puts its own return address
 * on the stack and counts on it, has to be spared: it would take the next return for theirs.
 */
static notrace __noreturn void leave(void)
{
	ekiden_leave(LEFT);
	/* Not reached. objtool cannot know that, and a loop keeps the code after it from being fallen into. */
	for (;;)
		cpu_relax();
}

/* A policy that runs has panicked. Its call ends, and the engine continues; without another policy the engine's call ends too. */
notrace __noreturn void ekiden_policy_fault(const struct ekiden_host_table *host)
{
	this_cpu_write(faulted, instance_of(host));
	leave();
}

/* A policy that does not run yet has panicked, or one that was asked about settings of a task. No policy is taken out for it. */
notrace __noreturn void ekiden_candidate_fault(const struct ekiden_host_table *host)
{
	leave();
}

notrace void ekiden_c_fault(const char *text, size_t len)
{
	give_first(&engine_reason, this_cpu_ptr(&engine_words), text, len);
	/* Pairs with the acquire in ekiden_is_broken(): the reason is complete. */
	smp_store_release(&broken, true);
	ekiden_rs_silence();
	if (!this_cpu_read(ekiden_guard_sp))
		panic("ekiden: Rust panicked outside a guarded call: %.*s", (int)len, text);
	leave();
}

/* Rust has left a call of the engine: the engine has panicked, or the only policy has, which the engine hears now. */
void ekiden_do_left(struct ekiden_outcome *outcome)
{
	if (this_cpu_read(faulted))
		ekiden_run_guarded(ekiden_rs_faulted, ekiden_rs_default(), 0, 0, 0, 0);
	outcome->status = EKIDEN_FAULT;
}

int ekiden_do_fault_text(char *text, u32 size)
{
	const struct ekiden_text *reason = READ_ONCE(engine_reason) ?: READ_ONCE(newest_reason);
	size_t len = reason && size ? min_t(size_t, reason->len, size - 1) : 0;

	if (!size)
		return 0;
	if (len)
		memcpy(text, reason->bytes, len);
	text[len] = 0;
	return len;
}

/* ---- events ---- */

void ekiden_deliver(struct ekiden_event *event, struct ekiden_outcome *outcome, const void *payload, size_t len)
{
	unsigned long flags;
	u32 kind = event->kind;
	u64 start_ns;

	local_irq_save(flags);
	start_ns = ekiden_times_begin();
	/* An empty slice of Rust needs a pointer that is not null. */
	if (unlikely(ekiden_run_guarded(ekiden_rs_deliver, event, outcome, payload ?: event, len, 0) == LEFT))
		ekiden_do_left(outcome);
	ekiden_times_end(kind, start_ns);
	if (tracepoint_enabled(ekiden_event))
		ekiden_do_trace(event, outcome);
	local_irq_restore(flags);
}

void ekiden_do_cpu_event(struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	ekiden_deliver(event, outcome, NULL, 0);
}

/* What a new task may inherit from: the one that has just made it. */
static u64 parent_of(const struct task_struct *p)
{
	u64 parent = current->scx.dsq_vtime;

	if (READ_ONCE(p->__state) != TASK_NEW || !parent || ekiden_rs_host_task(parent) != current)
		return 0;
	return parent;
}

/*
 * A task comes under our care: first it gets a place in the engine's table, then its nice value. This alone makes tasks, as the
 * verifier knows that `p` is one: its address goes with the event, not in it.
 */
void ekiden_do_enable(struct task_struct *p, struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	struct ekiden_event init = {
		.kind = EKIDEN_TASK_INIT,
		.task = parent_of(p),
		.flags = event->flags,
		.args = { 0, p->pid },
	};

	ekiden_deliver(&init, outcome, &p, sizeof(p));
	event->task = outcome->task;
	if (outcome->status == EKIDEN_DONE)
		ekiden_deliver(event, outcome, NULL, 0);
	outcome->task = event->task;
}

/* Without `ekiden_control`: sched_ext holds the CPU hotplug lock here, and the holder of the mutex may wait for that. */
int ekiden_do_attach(void)
{
	/* Pairs with the release in policy_slots.c that counts a new policy: its policy slot is complete. */
	if (!smp_load_acquire(&ekiden_running.nr))
		return -ENODEV;
	if (cmpxchg(&ekiden_running.attached, EKIDEN_DETACHED, EKIDEN_ATTACHED) != EKIDEN_DETACHED)
		return -ENODEV;
	/* Between the two all policies may have been freed, which this look is then sure to see. */
	if (!smp_load_acquire(&ekiden_running.nr)) {
		ekiden_do_detach();
		return -ENODEV;
	}
	ekiden_status_changed();
	return 0;
}

static void reap_later(struct work_struct *work)
{
	ekiden_reap();
}

static DECLARE_WORK(reap_work, reap_later);

void ekiden_do_detach(void)
{
	/*
	 * Pairs with the exchange in free_all(): what events did comes before what they used is freed. sched_ext also says that it
	 * stops where it was refused, and all may be freed at that time, which is not for it to end.
	 */
	if (cmpxchg(&ekiden_running.attached, EKIDEN_ATTACHED, EKIDEN_DETACHED) != EKIDEN_ATTACHED)
		return;
	ekiden_status_changed();
	schedule_work(&reap_work);
}

void ekiden_calls_ended(void)
{
	flush_work(&reap_work);
}

/* ---- timers, one per CPU ---- */

struct ekiden_timer {
	struct hrtimer timer;
	u32 cpu;
	u32 tenancy; /* of the policy that armed it */
};

/* Counts policies that took over from another kind of policy, whose timers mean nothing to them. */
static u32 tenancy;

void ekiden_forget_timers(void)
{
	WRITE_ONCE(tenancy, tenancy + 1);
}

static DEFINE_PER_CPU(struct ekiden_timer, timers);

/* What a call outside of every operation of sched_ext asks for. After a fault, the next operation on any CPU tells the kernel. */
void ekiden_carry_out(const struct ekiden_outcome *outcome)
{
	if (outcome->status == EKIDEN_FAULT)
		ekiden_timer_fired(~0ULL);
	else if (outcome->kicks)
		ekiden_timer_fired(outcome->kicks);
}

/* From its own callback. Another CPU may have started it meanwhile, and the kernel warns of those that are forwarded then. */
static void start_anew(struct hrtimer *timer, u64 delay_ns)
{
	hrtimer_start(timer, ns_to_ktime(delay_ns), HRTIMER_MODE_REL_PINNED_HARD);
}

static enum hrtimer_restart timer_expired(struct hrtimer *timer)
{
	struct ekiden_timer *own = container_of(timer, struct ekiden_timer, timer);
	struct ekiden_event event = { .kind = EKIDEN_TIMER, .cpu = own->cpu };
	struct ekiden_outcome outcome = {};

	if (own->tenancy != READ_ONCE(tenancy))
		return HRTIMER_NORESTART;
	rcu_read_lock();
	ekiden_deliver(&event, &outcome, NULL, 0);
	ekiden_carry_out(&outcome);
	rcu_read_unlock();
	if (outcome.status == EKIDEN_FAULT || !outcome.timer_ns)
		return HRTIMER_NORESTART;
	start_anew(timer, outcome.timer_ns);
	return HRTIMER_NORESTART;
}

/* The timer runs on the CPU that arms it, wherever the call that it was for belongs. */
void ekiden_do_arm_timer(u32 cpu, u64 delay_ns)
{
	if (cpu >= nr_cpu_ids)
		return;
	per_cpu_ptr(&timers, cpu)->tenancy = READ_ONCE(tenancy);
	hrtimer_start(&per_cpu_ptr(&timers, cpu)->timer, ns_to_ktime(delay_ns), HRTIMER_MODE_REL_PINNED_HARD);
}

/* Tasks whose policy is gone. */

/* How long after a policy faulted its tasks go to another one: what CPUs have done up to then is seen by all. */
#define REHOME_AFTER_NS 200000
/* And how long it is from some to the next. */
#define REHOME_AGAIN_NS 20000

static struct {
	struct hrtimer timer;
	atomic_t anew; /* begins with the first task */
	u64 next;
	s64 ret; /* of the last pass */
	struct completion done;
} rehome;

/* Some tasks at a time, in an interrupt: whatever else could do it is a task that may have to wait itself. */
static s64 introduce_some(u64 first)
{
	struct ekiden_outcome outcome = {};
	u64 start_ns = ekiden_times_begin();
	s64 next = ekiden_run_guarded(ekiden_rs_introduce, first, &outcome, 0, 0, 0);

	ekiden_times_end(EKIDEN_TIME_INTRODUCE, start_ns);
	if (next == LEFT)
		ekiden_do_left(&outcome);
	if (outcome.timer_ns)
		ekiden_do_arm_timer(smp_processor_id(), outcome.timer_ns);
	ekiden_carry_out(&outcome);
	return outcome.status == EKIDEN_FAULT ? -EIO : next;
}

static enum hrtimer_restart rehome_some(struct hrtimer *timer)
{
	s64 next;

	if (atomic_xchg(&rehome.anew, 0)) {
		rehome.next = 0;
		ekiden_wake_readers();
		ekiden_queues_tell_again();
	}
	rcu_read_lock();
	next = introduce_some(rehome.next);
	rcu_read_unlock();
	/* Started on another CPU meanwhile, it may come again although nothing is anew: from the beginning then. */
	rehome.next = max_t(s64, next, 0);
	rehome.ret = min_t(s64, next, 0);
	if (next < 0 || (!next && !atomic_read(&rehome.anew))) {
		complete_all(&rehome.done);
		return HRTIMER_NORESTART;
	}
	start_anew(timer, REHOME_AGAIN_NS);
	return HRTIMER_NORESTART;
}

void ekiden_c_stop(const char *text, size_t len)
{
	panic("ekiden: stopped, as was asked for, by %.*s", (int)len, text);
}

void ekiden_c_policy_faulted(u32 number)
{
	const struct ekiden_instance *instance = this_cpu_xchg(faulted, NULL);
	/* If it has not panicked, the engine has the reason. */
	static const struct ekiden_text none;
	const struct ekiden_text *reason = instance ? READ_ONCE(instance->reason) : &none;
	struct ekiden_policy_slot *policy_slot = &ekiden_running.policy_slots[number % EKIDEN_POLICY_SLOTS];

	/* Whichever CPU comes here first, it is the first reason; and any of them may be the first that says it to the kernel. */
	cmpxchg(&policy_slot->fault, NULL, reason);
	WRITE_ONCE(newest_reason, READ_ONCE(policy_slot->fault));
	if (!policy_slot->faulted_ns)
		policy_slot->faulted_ns = ekiden_c_now_ns();
	ekiden_say_of("taken out", policy_slot, policy_slot->fault);
	ekiden_queues_lose_policy(number % EKIDEN_POLICY_SLOTS);
	atomic_set(&rehome.anew, 1);
	hrtimer_start(&rehome.timer, ns_to_ktime(REHOME_AFTER_NS), HRTIMER_MODE_REL_PINNED_HARD);
}

/* Not in this task: as long as it waits for its turn among others, they would wait for it. */
int ekiden_introduce_tasks(void)
{
	reinit_completion(&rehome.done);
	atomic_set(&rehome.anew, 1);
	hrtimer_start(&rehome.timer, 0, HRTIMER_MODE_REL_PINNED_HARD);
	wait_for_completion(&rehome.done);
	return rehome.ret;
}

void ekiden_set_up_timers(void)
{
	int cpu;

	init_completion(&rehome.done);
	hrtimer_setup(&rehome.timer, rehome_some, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	for_each_possible_cpu(cpu) {
		struct ekiden_timer *own = per_cpu_ptr(&timers, cpu);

		own->cpu = cpu;
		hrtimer_setup(&own->timer, timer_expired, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	}
	ekiden_set_up_refills();
}

/* No event comes any more; but what a timer does may start others: a policy that faults in one has its tasks go elsewhere. */
void ekiden_cancel_timers(void)
{
	int cpu, pass;

	for (pass = 0; pass < 2; pass++) {
		ekiden_cancel_refills();
		for_each_possible_cpu(cpu)
			hrtimer_cancel(&per_cpu_ptr(&timers, cpu)->timer);
		hrtimer_cancel(&rehome.timer);
	}
}
