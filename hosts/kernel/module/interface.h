/* SPDX-License-Identifier: GPL-2.0-only */
/* What the C files of ekiden.ko share, and what policy modules need of it. */
#ifndef EKIDEN_INTERFACE_H
#define EKIDEN_INTERFACE_H

#include <linux/delay.h>
#include <linux/module.h>
#include <linux/types.h>
#include "ekiden_abi.h"

struct ekiden_host_table;

/* Mirrors of hosts/kernel/rt/src/table.rs. */
struct ekiden_create {
	void *arena;
	size_t arena_len;
	const u32 *topology;
	size_t topology_len;
	const char *params;
	size_t params_len;
	const void *saved; /* what an instance of another layout or in another place has saved for this one */
	size_t saved_len;  /* 0 if it begins anew */
	u32 max_tasks;
	u32 error_len;
	const struct ekiden_host_table *host;
	char error[256];
};

/* Parameters of a task as text, and what they mean. */
struct ekiden_settings {
	const char *text;
	size_t text_len;
	struct ekiden_task_params params;
	u32 error_len;
	char error[256];
};

/* Where calls are recorded. */
struct ekiden_call_log {
	void *base;	/* for each CPU EKIDEN_CALL_LOG_PAGE bytes, then its ring; NULL for nowhere */
	size_t records; /* of a ring, 64 bytes each: a power of two */
	u32 cpus;	/* rings */
	u32 ticks_khz;	/* of the counter that times are of (hosts/kernel/policy/src/here_<arch>.rs); 0: of the clock */
	u32 instance;	/* the number of the instance, from 1 */
};

/* What to do with it; the numbers of ekiden_recording::Mark. */
#define EKIDEN_CALL_LOG_STOP 0
#define EKIDEN_CALL_LOG_BEGIN 1
#define EKIDEN_CALL_LOG_HAND_OVER 2
#define EKIDEN_CALL_LOG_GO_ON 4

/* As Geometry of framework/hints; of a policy's types, without the records. */
struct ekiden_queue_geometry {
	struct ekiden_queue_side {
		u64 fingerprint;
		u32 bytes;
		u32 records;
	} up, down;
};

struct ekiden_policy_table {
	u32 abi_version;
	u32 size;
	char name[EKIDEN_NAME_LEN];
	u64 calls;
	void *(*create)(struct ekiden_create *args);
	void (*deliver)(void); /* called from Rust only, as the next two */
	void (*give)(void);
	void (*take)(void);
	bool (*check)(struct ekiden_create *args);
	void (*call_log)(const struct ekiden_call_log *call_log, u32 what);
	void (*save)(void); /* called from Rust only */
	s64 (*figures)(void *instance, u32 cpu, u64 *room, size_t len);
	bool (*settings)(struct ekiden_settings *settings);
	u64 layout;
	u64 params_declared;
	struct ekiden_queue_geometry types;
};

struct ekiden_host_table {
	u64 (*now_ns)(void);
	bool (*may_run)(u64 task, u32 cpu);
	void (*allowed_cpus)(u64 task, u64 *words, size_t len);
	void (*idle_cpus)(u64 *words, size_t len);
	u32 (*claim)(u64 task, u32 serial, u32 cpu);
	u32 (*take_idle)(u64 task, const u64 *words, size_t len);
	u64 (*running)(u32 cpu, u32 *weight, u64 *since_ns);
	u32 (*notify)(const struct ekiden_host_table *host, u32 queue, const void *bytes, size_t len);
	u32 (*process)(u64 task);
	u64 (*group)(u64 task);
	void (*reason)(const struct ekiden_host_table *host, const char *text, size_t len);
	void (*fault)(const struct ekiden_host_table *host);
	void (*leave)(const struct ekiden_host_table *host);
};

/* stop.c */
struct ekiden_stops {
	u64 quick;   /* stops after a few meetings at most */
	u64 slow;    /* after more, as a CPU did not come in time */
	u64 wait_ns; /* how long CPUs stood still at most, the last time, if only for a meeting that was given up */
	u64 wait_ns_max;
	int wait_max_cpu; /* for which CPU that longest meeting was given up; -1 if it was not, or all had come by then */
	u64 took_ns;	  /* how long it took from the wish until it was done, the last time */
	u64 took_ns_max;
	int took_max_cpu; /* for which CPU a meeting of that longest stop was given up last; -1 if none was */
	int late_cpu;	  /* for which CPU a meeting was given up last; -1 if none was */
	u64 graces;	  /* changes for which no CPU stood still, but a grace period was waited for */
	u64 grace_ns;	  /* how long that took, the last time */
	u64 grace_ns_max;
};

extern struct ekiden_stops ekiden_stops;
int ekiden_stop_cpus(s64 (*work)(void *), void *data, s64 *result, u64 *wait_ns);
u64 ekiden_wait_for_events(void);
void ekiden_note_grace(u64 ns);
void ekiden_stop_ended(void);

/* For policy modules. */
int ekiden_register_policy(const struct ekiden_policy_table *table, struct module *owner);
void ekiden_unregister_policy(const struct ekiden_policy_table *table);

/* Where kernels let a module be removed that is in use, it waits here until it is not. */
static inline void ekiden_wait_until_unused(struct module *module)
{
	while (module_refcount(module) > 0)
		msleep(20);
}

#endif
