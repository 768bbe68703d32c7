/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the functions that BPF calls lead to, and what calls them. Nothing that defines struct task_struct is included: see
 * kfuncs.c.
 */
#ifndef EKIDEN_KFUNCS_H
#define EKIDEN_KFUNCS_H

#include <linux/jump_label.h>
#include <linux/types.h>

struct bpf_prog;
struct ekiden_event;
struct ekiden_outcome;
struct task_struct;

/* What a guarded call returns when Rust has left by ekiden_leave(). */
#define LEFT (-1000)

/* guard_<arch>.S */
s64 ekiden_guarded_deliver(struct ekiden_event *event, struct ekiden_outcome *outcome);

/* calls.c */

void ekiden_do_cpu_event(struct ekiden_event *event, struct ekiden_outcome *outcome);
void ekiden_do_enable(struct task_struct *p, struct ekiden_event *event, struct ekiden_outcome *outcome);
void ekiden_do_arm_timer(u32 cpu, u64 delay_ns);
int ekiden_do_attach(void);
void ekiden_do_detach(void);
void ekiden_do_left(struct ekiden_outcome *outcome);
/* The newest reason, copied with a zero at its end. */
int ekiden_do_fault_text(char *text, u32 size);

/* policy_slots.c: whether policies choose CPUs themselves: none (0), the only one (1), perhaps some (2) */
extern int ekiden_asks_for_cpu;

/* the Rust half */
bool ekiden_rs_chooses_cpu(u64 task);

/* times.c: an event that is measured or traced */
DECLARE_STATIC_KEY_FALSE(ekiden_watched);
void ekiden_do_watched(struct ekiden_event *event, struct ekiden_outcome *outcome);

/* kfuncs_check.c */
int ekiden_is_refused(const struct bpf_prog *prog, u32 kfunc);

/* kfuncs.c: what BPF calls, and what the rest of the module does */
void ekiden_event(struct ekiden_event *event, struct ekiden_outcome *outcome);
void ekiden_cpu_event(struct ekiden_event *event, struct ekiden_outcome *outcome);
struct task_struct *ekiden_pick(struct ekiden_event *event, struct ekiden_outcome *outcome);
bool ekiden_chooses_cpu(u64 task);
void ekiden_task_enable(struct task_struct *p, struct ekiden_event *event, struct ekiden_outcome *outcome);
void ekiden_arm_timer(u32 cpu, u64 delay_ns);
int ekiden_attach(void);
void ekiden_detach(void);
int ekiden_fault_text(char *text, u32 text__sz);
void ekiden_timer_fired(u64 kicks);
int ekiden_register_kfuncs(void);

#endif
