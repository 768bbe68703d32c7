/* SPDX-License-Identifier: GPL-2.0-only */
/* What the two halves of a policy's module, in C and in Rust, know of each other. */
#ifndef EKIDEN_POLICY_H
#define EKIDEN_POLICY_H

#include <linux/percpu-defs.h>
#include "interface.h"

/* ---- the Rust half ---- */

extern const struct ekiden_policy_table ekiden_policy_table;

/* ---- policy.c ---- */

/* Where each CPU records its calls; NULL for nowhere. The Rust half reads it (hosts/kernel/policy/src/here_<arch>.rs). */
DECLARE_PER_CPU(void *, ekiden_call_log_here);
void ekiden_call_log_place(u32 cpu, void *place);

/* The exclusive or of the addresses of all locks that the call on this CPU has (framework/lock/src/held_<arch>.rs). */
DECLARE_PER_CPU(unsigned long, ekiden_held);
void ekiden_forget_locks(void);

/* Reads memory at an address that may be invalid. */
bool ekiden_peek(void *to, const void *from, size_t len);

/* Where each CPU has the task that it runs, as an address in its own part; and where that has its PID. */
extern unsigned long ekiden_current_at, ekiden_pid_at;

#endif
