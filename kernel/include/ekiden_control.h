/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * /dev/ekiden: what the loader asks of ekiden.ko. The Rust side is crates/loader/src/control.rs.
 *
 * Reading the device gives the status as JSON, for everybody. The ioctls need a descriptor opened for writing.
 */
#ifndef EKIDEN_CONTROL_H
#define EKIDEN_CONTROL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Makes a policy ready. It lives until the descriptor is closed. */
struct ekiden_create_request {
	char policy[32];
	__u64 params;		/* text */
	__u64 topology;		/* words, as Topology::to_words gives them */
	__u64 error;		/* room for the reason of a refusal */
	__u32 params_len;
	__u32 topology_len;	/* in words */
	__u32 error_len;
	__u32 max_tasks;
	__u64 arena_bytes;	/* memory for the policy itself */
	__u64 tape_records;	/* room for the newest calls of each CPU: a power of two of records of 64 bytes, or 0 */
};

/* Says something to the policy: a hint, or the opening, filling or closing of a hint queue. */
struct ekiden_hint_request {
	__u32 kind;		/* EKIDEN_HINT or EKIDEN_QUEUE_* */
	__u32 queue;
	__u64 bytes;
	__u32 len;
	__u32 taken;		/* written: whether a hint was taken */
};

#define EKIDEN_IOC_CREATE _IOW('E', 1, struct ekiden_create_request)
#define EKIDEN_IOC_HINT _IOWR('E', 2, struct ekiden_hint_request)
/* Replaces the running policy by a new instance of itself that gets its state. */
#define EKIDEN_IOC_RENEW _IO('E', 3)

/* Starts (1) or stops (0) recording calls. */
#define EKIDEN_IOC_TAPE _IO('E', 4)

/*
 * The calls that were recorded can be mapped for reading through a descriptor that is open for writing: for each possible
 * CPU EKIDEN_TAPE_PAGE bytes, of which the first eight count the records that were written, and then the ring.
 */
#define EKIDEN_TAPE_PAGE 4096
#define EKIDEN_TAPE_RECORDS_MAX (1 << 22)

#define EKIDEN_PARAMS_MAX 4096
#define EKIDEN_TOPOLOGY_MAX (1 << 20)
#define EKIDEN_HINT_MAX 4096

#endif
