/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * /dev/ekiden: what the loader asks of ekiden.ko. The Rust side is hosts/kernel/loader/src/control.rs, and status.rs beside it.
 *
 * Reading the device gives the status as JSON, to every user. The ioctls need a descriptor opened for writing, but for two.
 */
#ifndef EKIDEN_CONTROL_H
#define EKIDEN_CONTROL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Makes a policy ready. It lives until the descriptor is closed; then others that run get its tasks. */
struct ekiden_create_request {
	char policy[32];
	__u64 params;	/* text */
	__u64 topology; /* words, as Topology::to_words gives them */
	__u64 error;	/* room for the reason of a refusal */
	__u32 params_len;
	__u32 topology_len; /* in words */
	__u32 error_len;
	__u32 max_tasks;
	__u64 arena_bytes;	/* memory for the policy itself */
	__u64 call_log_records; /* room for the newest calls of each CPU: a power of two of records of 64 bytes, or 0 */
	__u32 flags;
	__u32 policy_slot; /* written: where it is */
	__u32 group;	   /* with EKIDEN_CREATE_GROUP */
	__u32 saved_len;
	__u64 saved; /* what a policy of this name has saved in an agent; only for the first policy */
};

/* If policies run, it joins them, and gets the tasks that are given to it: tasks and topology are as they are. */
#define EKIDEN_CREATE_JOIN 1
/* It gets all tasks for which no policy was chosen; the first policy always does. */
#define EKIDEN_CREATE_DEFAULT 2
/*
 * Every user, or the members of one group of users, may choose it for their tasks. Otherwise only processes with CAP_SYS_NICE may, unless
 * it is the default policy: it may be asked before others, or have CPUs or a share of its own.
 */
#define EKIDEN_CREATE_OPEN 4
#define EKIDEN_CREATE_GROUP 8

/* Most policies at once. */
#define EKIDEN_POLICY_SLOTS 8

/* Says something to the policy: a hint, or the opening, filling or closing of a hint queue. */
struct ekiden_hint_request {
	__u32 kind; /* EKIDEN_HINT or EKIDEN_QUEUE_* */
	__u32 queue;
	__u64 bytes;
	__u32 len;
	__u32 taken;	   /* written: whether a hint was taken */
	__u32 policy_slot; /* of the policy, counted from 1; 0 for the default one */
	__u32 reserved;
};

/*
 * Lets another policy take over from the one that runs, or another version of it, or a new instance of itself. Whatever can be
 * refused is refused before anything is touched.
 */
struct ekiden_upgrade_request {
	char module[64]; /* the name of the successor's module; nothing for the one that runs */
	char policy[32]; /* the policy that has to be in it; nothing for any */
	__u64 params;	 /* text; if there is none, a successor by pointer has those of the old one */
	__u64 error;	 /* room for the reason of a refusal */
	__u32 params_len;
	__u32 error_len;
	__u64 arena_bytes; /* memory for the policy itself; 0 for as much as before */
	__u32 flags;
	__u32 moved;	   /* written: how the tasks came over, EKIDEN_MOVED_* */
	__u64 wait_ns;	   /* written: how long a CPU waited at most */
	__u64 tasks;	   /* written: how many tasks there were */
	__u32 policy_slot; /* of the one that runs, counted from 1; 0 for the default one */
	__u32 reserved;
};

/* What the policy that runs saves for one of its name in an agent; ENODATA if it saves nothing, ENOSPC if there is no room. */
struct ekiden_save_request {
	__u64 bytes;
	__u32 len;	   /* of the room; written: of what is there */
	__u32 policy_slot; /* counted from 1; 0 for the default one */
};

/* Asks policies in this order. */
struct ekiden_order_request {
	__u8 policy_slots[EKIDEN_POLICY_SLOTS];
	__u32 len;
};

/*
 * Chooses the policy of a task. For one's own tasks, or with CAP_SYS_NICE, as for sched_setattr(2); EACCES if the policy is not open to the
 * caller, or a process with CAP_SYS_NICE has chosen for the task. The descriptor may be open for reading only.
 */
struct ekiden_choose_request {
	__s32 tid;	   /* 0 for the caller */
	__u32 policy_slot; /* counted from 1; 0 for the default one */
	__u32 flags;
	__u32 params_len;
	__u64 params; /* text: what is set for the task; as by default what is not in it */
	__u64 error;  /* room for the reason of a refusal */
	__u32 error_len;
	__u32 reserved;
};

/* The children that it has from now on get the same. */
#define EKIDEN_CHOOSE_INHERIT 1

/* Does not take over the state of another version: all tasks are new to the successor. */
#define EKIDEN_UPGRADE_START_OVER 1

#define EKIDEN_MOVED_BY_POINTER 1
#define EKIDEN_MOVED_CONVERTED 2
#define EKIDEN_MOVED_STARTED_OVER 3

#define EKIDEN_IOC_CREATE _IOWR('E', 1, struct ekiden_create_request)
#define EKIDEN_IOC_HINT _IOWR('E', 2, struct ekiden_hint_request)
#define EKIDEN_IOC_UPGRADE _IOWR('E', 4, struct ekiden_upgrade_request)

#define EKIDEN_IOC_SAVE _IOWR('E', 12, struct ekiden_save_request)

/* Stops (0) or resumes (1) recording the calls of the policy in the policy slot that stands in the bits above. */
#define EKIDEN_IOC_CALL_LOG _IO('E', 5)

/*
 * What is done about the policy in the policy slot that stands in the bits above the lowest two when a task of its changes
 * its state in an unexpected way: nothing (0), it is reported (1), the policy is taken out (2), the machine stops (3).
 */
#define EKIDEN_IOC_CHECKS _IO('E', 8)

/* Gives a policy CPUs and a weight, instead of what it had. */
struct ekiden_share_request {
	__u64 cpus;	/* words of a set; none for no set */
	__u32 cpus_len; /* in words */
	__u32 policy_slot;
	__u32 weight; /* 0 for none */
	__u32 flags;
};

/* No other policy may use its CPUs, and it no others. */
#define EKIDEN_SHARE_STRICT 1
#define EKIDEN_SHARE_WORDS_MAX 1024

/*
 * Opens a queue of hints for the calling process: a descriptor of its own, of which `bytes` bytes can be mapped once by this process, shared.
 * framework/hints/src/layout.rs describes what is there. It takes the right to choose the policy for a task, and the descriptor of the
 * device may be open for reading only. EPROTO: the types are not those of the policy; EOPNOTSUPP: it has none; EDQUOT, EUSERS: there are too many.
 */
struct ekiden_open_request {
	__u64 up_fingerprint; /* of the type of hints, and of notices */
	__u64 down_fingerprint;
	__u32 up_bytes; /* of a record */
	__u32 down_bytes;
	__u32 up_records; /* powers of two */
	__u32 down_records;
	__u32 policy_slot; /* of the policy, counted from 1; 0 for the default one */
	__u32 queue;	   /* written: its number, as the policy knows it */
	__u64 bytes;	   /* written */
	__u64 error;	   /* room for the reason of a refusal */
	__u32 error_len;
	__u32 flags; /* 0 */
};

#define EKIDEN_IOC_OPEN _IOWR('E', 10, struct ekiden_open_request)

/* Has the policy look at a queue now, by that queue's descriptor. EPIPE: it has ended; ESTALE: another version has other types, open anew. */
#define EKIDEN_IOC_RING _IO('E', 11)

#define EKIDEN_QUEUE_RECORDS_MAX 4096
#define EKIDEN_QUEUE_RECORD_MAX 256
#define EKIDEN_QUEUES_MAX 4096
/* Limits of one user, as the kernel has no other owner of what is not a task's memory. */
#define EKIDEN_QUEUES_USER_MAX 256
#define EKIDEN_QUEUE_BYTES_USER_MAX (16 << 20)

#define EKIDEN_IOC_SHARE _IOW('E', 9, struct ekiden_share_request)
#define EKIDEN_IOC_ORDER _IOW('E', 6, struct ekiden_order_request)
#define EKIDEN_IOC_CHOOSE _IOW('E', 7, struct ekiden_choose_request)

/*
 * The calls that were recorded can be mapped for reading through a descriptor that is open for writing: for each possible
 * CPU EKIDEN_CALL_LOG_PAGE bytes, of which the first eight count the records that were written, and then the ring. Rings of the policy in
 * a policy slot begin at as many times EKIDEN_CALL_LOG_STRIDE.
 */
#define EKIDEN_CALL_LOG_STRIDE (1ULL << 40)
#define EKIDEN_CALL_LOG_PAGE 4096
#define EKIDEN_CALL_LOG_RECORDS_MAX (1 << 22)

#define EKIDEN_PARAMS_MAX 4096
#define EKIDEN_TOPOLOGY_MAX (1 << 20)
#define EKIDEN_HINT_MAX 4096

#endif
