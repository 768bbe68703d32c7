/* SPDX-License-Identifier: GPL-2.0-only */
/* What the C files of ekiden.ko share, and what policy modules need of it. */
#ifndef EKIDEN_H
#define EKIDEN_H

#include <linux/types.h>
#include "ekiden_abi.h"

struct module;
struct ekiden_host_table;

/* Mirrors of kernel/rt/src/table.rs. */
struct ekiden_create {
	void *arena;
	size_t arena_len;
	const u32 *topology;
	size_t topology_len;
	const char *params;
	size_t params_len;
	u32 max_tasks;
	u32 error_len;
	const struct ekiden_host_table *host;
	void *tape;		/* for each CPU a page, then its ring */
	size_t tape_records;	/* of a ring */
	u32 tape_cpus;
	u32 instance;
	u32 ticks_khz;		/* of ticks_<arch>, if those are good for the times of recorded calls */
	char error[256];
};

struct ekiden_policy_table {
	u32 abi_version;
	u32 size;
	char name[EKIDEN_NAME_LEN];
	u64 calls;
	void *(*create)(struct ekiden_create *args);
	void (*deliver)(void);	/* called from Rust only */
	void (*record)(bool on);
	void *(*hand_over)(void *instance, struct ekiden_create *args);
};

struct ekiden_host_table {
	u64 (*now_ns)(void);
	bool (*may_run)(u64 task, u32 cpu);
	void (*allowed_cpus)(u64 task, u64 *words, size_t len);
	void (*idle_cpus)(u64 *words, size_t len);
	void (*fault)(const char *text, size_t len);
};

/* For policy modules. */
int ekiden_register_policy(const struct ekiden_policy_table *table, struct module *owner);
void ekiden_unregister_policy(const struct ekiden_policy_table *table);

#endif
