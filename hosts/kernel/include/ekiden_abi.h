/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The wire between the host and the engine, as C sees it. The Rust side is framework/abi; a test there compares names,
 * numbers and offsets with this file.
 */
#ifndef EKIDEN_ABI_H
#define EKIDEN_ABI_H

#define EKIDEN_ABI_VERSION 7
#define EKIDEN_NAME_LEN 32
#define EKIDEN_TASK_PARAMS_MAX 4

enum ekiden_event_kind {
	EKIDEN_TASK_INIT = 1,
	EKIDEN_TASK_ENABLE = 2,
	EKIDEN_TASK_DISABLE = 3,
	EKIDEN_TASK_EXIT = 4,
	EKIDEN_SELECT_CPU = 5,
	EKIDEN_ENQUEUE = 6,
	EKIDEN_BLOCK = 7,
	EKIDEN_PICK = 8,
	EKIDEN_PICK_REFUSED = 9,
	EKIDEN_TICK = 10,
	EKIDEN_YIELD = 11,
	EKIDEN_NICE = 12,
	EKIDEN_AFFINITY = 13,
	EKIDEN_CPU_ONLINE = 14,
	EKIDEN_CPU_OFFLINE = 15,
	EKIDEN_TIMER = 16,
	EKIDEN_HINT = 17,
	EKIDEN_QUEUE_OPEN = 18,
	EKIDEN_QUEUE_READY = 19,
	EKIDEN_QUEUE_CLOSE = 20,
	EKIDEN_TASK_MOVE = 21,
	EKIDEN_GROUP_CREATE = 22,
	EKIDEN_GROUP_DESTROY = 23,
	EKIDEN_GROUP_WEIGHT = 24,
	EKIDEN_GROUP_IDLE = 25,
	EKIDEN_GROUP_LIMIT = 26,
	EKIDEN_REFILL = 27,
	EKIDEN_TASK_PARAMS = 28,
};

enum ekiden_status {
	EKIDEN_DONE = 0,
	EKIDEN_RUN = 1,
	EKIDEN_KEEP_PREVIOUS = 2,
	EKIDEN_BEYOND = 3,
	EKIDEN_FAULT = -1,
	EKIDEN_INVALID = -2,
	EKIDEN_FULL = -3,
};

#define EKIDEN_INIT_AGAIN 1ULL
#define EKIDEN_ENQUEUE_WAKEUP 1ULL
#define EKIDEN_ENQUEUE_LAST 2ULL
#define EKIDEN_ENQUEUE_MAY_PLACE 4ULL
#define EKIDEN_PICK_PREV_RUNNABLE 1ULL
#define EKIDEN_PICK_POLICIES 2ULL
#define EKIDEN_REFILL_RETURNED 1ULL
#define EKIDEN_REFUSED_NOT_ALLOWED 4ULL
#define EKIDEN_CALL_SELECT_TASK_RQ 12
#define EKIDEN_CALL_REGISTER_QUEUE 16
#define EKIDEN_CALL_ENTER_QUEUE 17

struct ekiden_event {
	__u32 kind;
	__u32 cpu;
	__u64 task;
	__u64 flags;
	__u64 runtime_ns;
	__u64 args[2];
};

struct ekiden_task_params {
	__u64 declared;
	__u64 values[EKIDEN_TASK_PARAMS_MAX];
};

struct ekiden_outcome {
	__s32 status;
	__s32 cpu;
	__u64 host_task;
	__u64 task;
	__u64 slice_ns;
	__u64 timer_ns;
	__u64 kicks; /* four CPUs plus one, 16 bits each; all ones for every CPU */
};

#endif
