/* SPDX-License-Identifier: GPL-2.0-only */
/* A queue of hints, as its three files see it: what is said in it, its descriptor, and what is told of it. */
#ifndef EKIDEN_QUEUES_H
#define EKIDEN_QUEUES_H

#include <linux/irq_work.h>
#include <linux/pid.h>
#include <linux/spinlock.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include "host.h"

/* As in framework/hints/src/layout.rs. */
#define QUEUE_OPEN 1
#define QUEUE_POLICY_GONE 2
#define QUEUE_OTHER_TYPES 3
#define QUEUE_CLOSED 4
#define AT_STATE 2
#define AT_UP_HEAD 16
#define AT_UP_FULL 17
#define AT_REFUSED 33
#define AT_NONSENSE 34
#define AT_DOWN_HEAD 48
#define AT_DOWN_LOST 49
#define AT_DOWN_TAIL 64

/* Most bytes of hints in one call of the policy. */
#define HINTS_LEN 4096

struct queue {
	u32 number;
	u32 policy_slot;
	int state;
	bool known;	    /* to the policy; under `ekiden_control` */
	bool summed;	    /* its counts are in `past`; likewise */
	unsigned long busy; /* bit 0: a CPU takes hints out */
	struct pid *owner;  /* referenced: a number may be another process's by now */
	const void *signal; /* of the owner's threads; only compared */
	kuid_t uid;
	u64 *memory;
	size_t bytes;
	struct ekiden_queue_geometry geometry;
	u64 up_tail; /* what is in the memory may be anything */
	u64 heard;   /* without what was passed over as nonsense */
	u64 down_head;
	raw_spinlock_t down; /* several CPUs may say something */
	struct irq_work work;
	wait_queue_head_t wait;
	struct hlist_node of_owner;
	struct rcu_work freeing;
};

/* What queues have counted. What a program writes itself may be anything. */
struct sums {
	u64 hints, refused, nonsense, full, notices, lost;
};

/* By policy slot: how many queues it has had, and what those have counted that are no more. Under `ekiden_control`. */
extern struct past {
	u64 opened;
	struct sums sums;
} ekiden_queues_past[EKIDEN_POLICY_SLOTS];

/* All that are open, by number. Changed under `ekiden_control`, read under RCU. */
extern struct xarray ekiden_queues;

static inline u64 word(const struct queue *queue, size_t at)
{
	return READ_ONCE(queue->memory[at]);
}

/* ---- queues.c ---- */

void ekiden_queue_interrupt(struct irq_work *work);
/* Interrupts are off. Whether there may be more. */
bool ekiden_queue_take_hints(struct queue *queue);
/* Under `ekiden_control`: the policy hears that it is opened or closed. */
void ekiden_queue_tell(struct queue *queue, u32 kind);
/* Under `ekiden_control`: its policy is there, and takes what is in it. */
bool ekiden_queue_fits(const struct queue *queue);
/* Under `ekiden_control`: its policy is there, and has no more to do with it. */
void ekiden_queue_sum_up(struct queue *queue);
void ekiden_queue_add_sums(struct sums *sums, const struct queue *queue);
/* Under `ekiden_control`: in the table of owners, by which an event finds what its task's program has written, or no more. */
void ekiden_queue_is_owned(struct queue *queue);
void ekiden_queue_is_not_owned(struct queue *queue);

/* ---- queue_files.c ---- */

int ekiden_queue_files_begin(void);
/* No descriptor is left. */
void ekiden_queue_files_ended(void);

#endif
