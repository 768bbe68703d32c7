// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queues of hints: memory that a program and its policy share, a descriptor for each, and when the policy hears of
 * what is in it. framework/hints/src/layout.rs says how the memory is laid out; all that reads or writes it is Rust there, but
 * for looks at one word.
 *
 * A queue is of the process that opens it. Its memory is not the child's after a fork, and by an inherited descriptor
 * nothing can be asked. It closes when the process closes any descriptor of it or ends; what is unmapped only cannot
 * be written to any more.
 */
#include <linux/hash.h>
#include <linux/math64.h>
#include <linux/percpu.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include "queues.h"

/* Counts of queues that are gone, by policy slot. */
struct past ekiden_queues_past[EKIDEN_POLICY_SLOTS];

DEFINE_XARRAY_ALLOC1(ekiden_queues);
static u32 owned;
/* Queues by the signal_struct of the owner: one look says that a task has none. */
#define OWNERS_BITS 10
static struct hlist_head owners[1 << OWNERS_BITS];
bool ekiden_any_queue;

/* Where each CPU copies hints to. Not a variable: of those, all modules together have 8 KiB for each CPU. */
static u8 __percpu *hints_room;

void ekiden_queue_add_sums(struct sums *sums, const struct queue *queue)
{
	sums->hints += READ_ONCE(queue->heard);
	sums->refused += word(queue, AT_REFUSED);
	sums->nonsense += word(queue, AT_NONSENSE);
	sums->full += word(queue, AT_UP_FULL);
	sums->notices += READ_ONCE(queue->down_head);
	sums->lost += word(queue, AT_DOWN_LOST);
}

void ekiden_queue_sum_up(struct queue *queue)
{
	if (!queue->summed)
		ekiden_queue_add_sums(&ekiden_queues_past[queue->policy_slot].sums, queue);
	queue->summed = true;
}

/* ---- queues by their owners ---- */

void ekiden_queue_is_owned(struct queue *queue)
{
	hlist_add_head_rcu(&queue->of_owner, &owners[hash_ptr(queue->signal, OWNERS_BITS)]);
	owned++;
	WRITE_ONCE(ekiden_any_queue, true);
}

void ekiden_queue_is_not_owned(struct queue *queue)
{
	hlist_del_rcu(&queue->of_owner);
	WRITE_ONCE(ekiden_any_queue, --owned > 0);
}

/* ---- the policy hears ---- */

bool ekiden_queue_take_hints(struct queue *queue)
{
	struct ekiden_event event = {
		.kind = EKIDEN_QUEUE_READY,
		.cpu = smp_processor_id(),
		.flags = queue->policy_slot + 1,
	};
	struct ekiden_outcome outcome = {};
	u8 *room = this_cpu_ptr(hints_room);
	s64 len = ekiden_rs_queue_take(queue->memory, &queue->geometry, &queue->up_tail, room, HINTS_LEN);

	if (len <= 0)
		return false;
	WRITE_ONCE(queue->heard, queue->heard + div_u64(len, queue->geometry.up.bytes));
	event.args[0] = queue->number;
	event.args[1] = len;
	rcu_read_lock();
	ekiden_deliver(&event, &outcome, room, len);
	/* A number that is negative is no answer: none of the hints was refused. */
	if (outcome.cpu > 0)
		ekiden_rs_queue_refused(queue->memory, &queue->geometry, outcome.cpu);
	if (outcome.timer_ns)
		ekiden_do_arm_timer(event.cpu, outcome.timer_ns);
	ekiden_carry_out(&outcome);
	rcu_read_unlock();
	return len == HINTS_LEN - HINTS_LEN % queue->geometry.up.bytes;
}

/*
 * An interrupt soon after what it is for, outside of every operation. It takes a limited amount at a time: the rest
 * of what a program writes without end is heard with its next event.
 */
void ekiden_queue_interrupt(struct irq_work *work)
{
	struct queue *queue = container_of(work, struct queue, work);
	unsigned long flags;
	u64 start_ns;

	local_irq_save(flags);
	start_ns = ekiden_times_begin();
	/* Another CPU at it sees what is there, or the next event does. The bit comes first: a close waits for it. */
	if (!test_and_set_bit(0, &queue->busy)) {
		if (READ_ONCE(queue->state) == QUEUE_OPEN)
			ekiden_queue_take_hints(queue);
		clear_bit_unlock(0, &queue->busy);
	}
	ekiden_times_end(EKIDEN_TIME_HINTS, start_ns);
	local_irq_restore(flags);
	if (wq_has_sleeper(&queue->wait))
		wake_up_all(&queue->wait);
}

/*
 * In any context. A CPU that has gone does no irq_work until it goes the next time, and as long as it waits there no other CPU would do it:
 * hints are taken with the next event, of a message the program hears with the next one, and of a policy's end when its tasks go to another.
 */
static void interrupt(struct queue *queue)
{
	if (cpu_online(raw_smp_processor_id()))
		irq_work_queue(&queue->work);
}

/* After each event while any queue is open, with interrupts off: what this task's program has written is due. */
void ekiden_look_at_queues(void)
{
	const void *signal = current->signal;
	struct hlist_head *bucket = &owners[hash_ptr(signal, OWNERS_BITS)];
	struct queue *queue;

	if (likely(!READ_ONCE(bucket->first)))
		return;
	rcu_read_lock();
	hlist_for_each_entry_rcu(queue, bucket,
				 of_owner) if (queue->signal == signal && word(queue, AT_UP_HEAD) != READ_ONCE(queue->up_tail))
		interrupt(queue);
	rcu_read_unlock();
}

/* ---- the program hears ---- */

static struct ekiden_instance *asks(const struct ekiden_host_table *host)
{
	return container_of((struct ekiden_host_table *)host, struct ekiden_instance, host);
}

/* Called by a policy: 0, or a number of NotTold. */
u32 ekiden_c_notify(const struct ekiden_host_table *host, u32 number, const void *bytes, size_t len)
{
	struct queue *queue;
	unsigned long flags;
	u32 ret = 2;

	rcu_read_lock();
	queue = xa_load(&ekiden_queues, number);
	if (queue && READ_ONCE(queue->state) == QUEUE_OPEN && ekiden_running.policy_slots[queue->policy_slot].now == asks(host)) {
		raw_spin_lock_irqsave(&queue->down, flags);
		ret = ekiden_rs_queue_put(queue->memory, &queue->geometry, &queue->down_head, bytes, len);
		raw_spin_unlock_irqrestore(&queue->down, flags);
		/* No task is woken up in a scheduling call. */
		if (!ret && wq_has_sleeper(&queue->wait))
			interrupt(queue);
	}
	rcu_read_unlock();
	return ret;
}

/* Without waiting, in any context: what a policy has, or had, no program is to wait for any more. */
static void end_queues(u32 policy_slot, int state)
{
	struct queue *queue;
	unsigned long number;

	rcu_read_lock();
	xa_for_each(&ekiden_queues, number, queue) {
		if (queue->policy_slot != policy_slot || cmpxchg(&queue->state, QUEUE_OPEN, state) != QUEUE_OPEN)
			continue;
		WRITE_ONCE(queue->memory[AT_STATE], state);
		interrupt(queue);
	}
	rcu_read_unlock();
}

/* The CPU on which a policy was taken out may have gone. */
void ekiden_queues_tell_again(void)
{
	struct queue *queue;
	unsigned long number;

	rcu_read_lock();
	xa_for_each(&ekiden_queues, number, queue)
		if (READ_ONCE(queue->state) != QUEUE_OPEN)
			interrupt(queue);
	rcu_read_unlock();
}

void ekiden_queues_lose_policy(u32 policy_slot)
{
	end_queues(policy_slot, QUEUE_POLICY_GONE);
}

/* Under `ekiden_control`: another policy may come to this place. */
void ekiden_queues_forget_policy(u32 policy_slot)
{
	ekiden_queues_lose_policy(policy_slot);
	ekiden_queues_past[policy_slot] = (struct past){};
}

/* ---- the policy hears of the queue itself ---- */

void ekiden_queue_tell(struct queue *queue, u32 kind)
{
	struct ekiden_event event = { .kind = kind, .flags = queue->policy_slot + 1, .args = { queue->number } };
	struct ekiden_outcome outcome = {};

	if (kind == EKIDEN_QUEUE_OPEN)
		event.args[0] |= (u64)pid_nr(queue->owner) << 32;
	rcu_read_lock();
	preempt_disable();
	event.cpu = smp_processor_id();
	ekiden_deliver(&event, &outcome, NULL, 0);
	ekiden_carry_out(&outcome);
	preempt_enable();
	rcu_read_unlock();
}

static bool same_types(const struct ekiden_queue_geometry *one, const struct ekiden_queue_geometry *other)
{
	return one->up.fingerprint == other->up.fingerprint && one->up.bytes == other->up.bytes &&
	       one->down.fingerprint == other->down.fingerprint && one->down.bytes == other->down.bytes;
}

bool ekiden_queue_fits(const struct queue *queue)
{
	struct ekiden_policy_slot *policy_slot = ekiden_running.nr ? ekiden_policy_slot_of(queue->policy_slot) : NULL;

	return policy_slot && ekiden_is_alive(policy_slot) && same_types(&queue->geometry, &policy_slot->now->policy->table->types);
}

/* All CPUs stand still, and another version has the policy slot now. */
void ekiden_queues_change_policy(u32 policy_slot, const struct ekiden_queue_geometry *before,
				 const struct ekiden_queue_geometry *now)
{
	if (!same_types(before, now))
		end_queues(policy_slot, QUEUE_OTHER_TYPES);
}

/*
 * Under `ekiden_control`, after that: a version that has the state of the one before is told which queues are no more, and
 * one that knows nothing which there are.
 */
void ekiden_queues_meet_policy(u32 policy_slot, bool has_state)
{
	struct queue *queue;
	unsigned long number;

	xa_for_each(&ekiden_queues, number, queue) {
		int state = READ_ONCE(queue->state);

		if (queue->policy_slot != policy_slot || !queue->known)
			continue;
		if (state == QUEUE_OTHER_TYPES)
			ekiden_queue_sum_up(queue);
		if (has_state && state == QUEUE_OTHER_TYPES) {
			ekiden_queue_tell(queue, EKIDEN_QUEUE_CLOSE);
			queue->known = false;
		} else if (!has_state && state == QUEUE_OPEN) {
			ekiden_queue_tell(queue, EKIDEN_QUEUE_OPEN);
		}
	}
}

int ekiden_queues_begin(void)
{
	hints_room = __alloc_percpu(HINTS_LEN, sizeof(u64));
	if (!hints_room)
		return -ENOMEM;
	if (!ekiden_queue_files_begin())
		return 0;
	free_percpu(hints_room);
	return -ENOMEM;
}

/* No descriptor is left. */
void ekiden_queues_ended(void)
{
	ekiden_queue_files_ended();
	free_percpu(hints_room);
}
