/* SPDX-License-Identifier: GPL-2.0-only */
/* What the C files of ekiden.ko know of each other. */
#ifndef EKIDEN_HOST_H
#define EKIDEN_HOST_H

#include <linux/fs.h>
#include <linux/jump_label.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/timekeeping.h>
#include <linux/tracepoint-defs.h>
#include "interface.h"
#include "ekiden_control.h"
#include "kfuncs.h"

/* ---- the Rust half ---- */

s64 ekiden_rs_create(const struct ekiden_policy_table *table, struct ekiden_create *args, void *arena, size_t arena_len,
		     u32 nr_cpus);
bool ekiden_rs_begin_several(void);
s64 ekiden_rs_come(const struct ekiden_policy_table *table, void *made);
s64 ekiden_rs_has_come(u64 policy_slot, u64 is_default, struct ekiden_outcome *outcome);
s64 ekiden_rs_leave(u64 policy_slot);
s64 ekiden_rs_has_left(u64 policy_slot);
s64 ekiden_rs_reorder(const u8 *order, size_t len);
s64 ekiden_rs_share(const struct ekiden_share_request *share, const u64 *cpus);
s64 ekiden_rs_all_see(struct ekiden_outcome *outcome);
s64 ekiden_rs_choose(u64 task, u64 policy_slot, u64 inherits, u64 by_root);
s64 ekiden_rs_faulted(u64 policy_slot);
s64 ekiden_rs_check(u64 policy_slot, u64 checks);
u64 ekiden_rs_order(void);
u64 ekiden_rs_default(void);
bool ekiden_rs_is_alive(u64 policy_slot);
bool ekiden_rs_any_alive(void);
u64 ekiden_rs_calls(void);
s64 ekiden_rs_swap(u64 policy_slot, const struct ekiden_policy_table *table, struct ekiden_create *args, void *successor,
		   struct ekiden_outcome *outcome);
s64 ekiden_rs_save(u64 policy_slot, u32 cpu, void *room, size_t len);
s64 ekiden_rs_introduce(u64 first, struct ekiden_outcome *outcome);
s64 ekiden_rs_find_starved(u64 number, u64 most, u64 apart_ms, u64 first, struct ekiden_outcome *outcome);
u64 ekiden_rs_task_count(void);
s64 ekiden_rs_deliver(struct ekiden_event *event, struct ekiden_outcome *outcome, const void *payload, size_t len);
s64 ekiden_rs_status(char *buffer, size_t len, u64 policy_slot);
/* What the policy counts for people: which figures for no CPU, and else the words of a CPU. The number of bytes. */
#define EKIDEN_NO_CPU U32_MAX
s64 ekiden_rs_figures(u64 policy_slot, u32 cpu, u64 *room, size_t len);
/* Writes figures as JSON, from a description and the sums of words, of which there are EKIDEN_FIGURES_WORDS. */
#define EKIDEN_FIGURES_WORDS 1024
s64 ekiden_rs_put_figures(char *buffer, size_t len, const void *description, size_t described, const u64 *words);
/* As in Totals of framework/engine/src/counters.rs, in this order; false if there is no such policy or CPU. */
#define EKIDEN_COUNTERS 8
bool ekiden_rs_counters(u64 policy_slot, u32 cpu, u64 counters[EKIDEN_COUNTERS]);
void ekiden_rs_forget(void);
void ekiden_rs_silence(void);
const void *ekiden_rs_host_task(u64 task);
void ekiden_rs_idle_cpus(u64 *words, size_t len);
u32 ekiden_rs_claim(u64 task, u32 serial, u32 cpu);
/* Takes an idle CPU of those in both sets, of which the second may be missing. */
u32 ekiden_rs_take_idle(u64 task, const u64 *allowed, size_t allowed_len, const u64 *among, size_t among_len);
u32 ekiden_rs_weight_of_running(u64 task, u32 cpu);
/* Its number, and below that 32 bits of its weight. */
u64 ekiden_rs_group(u64 task);
/* Queues: bytes of the whole, or 0; its header; a number of bytes of hints, negative for an index that makes no sense; a notice. */
size_t ekiden_rs_queue_bytes(const struct ekiden_queue_geometry *geometry);
bool ekiden_rs_queue_init(void *memory, const struct ekiden_queue_geometry *geometry);
s64 ekiden_rs_queue_take(void *memory, const struct ekiden_queue_geometry *geometry, u64 *tail, void *room, size_t len);
void ekiden_rs_queue_refused(void *memory, const struct ekiden_queue_geometry *geometry, u64 records);
u32 ekiden_rs_queue_put(void *memory, const struct ekiden_queue_geometry *geometry, u64 *head, const void *bytes, size_t len);

/* ---- guarded entry, guard_<arch>.S ---- */

typedef s64 (*ekiden_guarded_fn)(u64 a, u64 b, u64 c, u64 d, u64 e);
asmlinkage s64 ekiden_guarded(u64 a, u64 b, u64 c, u64 d, u64 e, ekiden_guarded_fn fn);
asmlinkage void ekiden_leave(s64 result);

#define ekiden_run_guarded(fn, a, b, c, d, e) \
	ekiden_guarded((u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), (ekiden_guarded_fn)(void *)(fn))

/* ---- times.c ---- */

/* What takes time besides events, numbered after them. */
enum {
	EKIDEN_TIME_INTRODUCE = EKIDEN_TASK_PARAMS + 1, /* tasks are introduced to a policy */
	EKIDEN_TIME_SCAN,				/* the look for tasks that wait too long */
	EKIDEN_TIME_SETTINGS,				/* a policy checks what is set for a task */
	EKIDEN_TIME_SAVE,				/* it saves itself for a version of another layout */
	EKIDEN_TIME_CHECK,				/* the one that takes over looks at its parameters */
	EKIDEN_TIME_COME,				/* another policy comes beside those that run */
	EKIDEN_TIME_HINTS,				/* hints are taken out of a queue, with the event that brings them */
	EKIDEN_TIME_STATUS,				/* the engine says what it counts */
	EKIDEN_TIME_FIGURES,				/* and a policy what it counts, one CPU at a time */
	EKIDEN_TIME_KINDS,
};

DECLARE_STATIC_KEY_FALSE(ekiden_times);

/* 0 if nothing is measured. With interrupts off. */
static __always_inline u64 ekiden_times_begin(void)
{
	return static_branch_unlikely(&ekiden_times) ? ktime_get_mono_fast_ns() : 0;
}

void ekiden_times_end(u32 kind, u64 start_ns);
int ekiden_put_times(char *to, size_t size);
/* A reader of the tracepoint comes or goes. */
int ekiden_watch_events(void);
void ekiden_watch_events_no_more(void);

/* ---- figures.c ---- */

int ekiden_put_figures(char *to, size_t size, u32 policy_slot);

/* ---- calls.c: what BPF and Rust call ---- */

#define EKIDEN_TEXT_LEN 256

struct ekiden_text {
	u32 len;
	char bytes[EKIDEN_TEXT_LEN];
};

static inline void ekiden_set_text(struct ekiden_text *text, const char *bytes, size_t len)
{
	text->len = min(len, sizeof(text->bytes));
	memcpy(text->bytes, bytes, text->len);
}

/* For string literals. */
#define ekiden_say(text, literal) ekiden_set_text(text, literal, sizeof(literal) - 1)

/* The host of a policy that runs, and of one that does not yet. */
extern const struct ekiden_host_table ekiden_running_host, ekiden_candidate_host;
DECLARE_PER_CPU(unsigned long, ekiden_guard_sp);
DECLARE_PER_CPU(long, ekiden_fuel);

void ekiden_deliver(struct ekiden_event *event, struct ekiden_outcome *outcome, const void *payload, size_t len);
void ekiden_carry_out(const struct ekiden_outcome *outcome);
int ekiden_introduce_tasks(void);
void ekiden_forget_timers(void);
void ekiden_set_up_timers(void);
void ekiden_cancel_timers(void);
void ekiden_calls_ended(void);
/* Whether the engine has panicked: it is not asked any more. */
bool ekiden_is_broken(void);
/* Whether that is so, or all policies have been taken out. */
bool ekiden_is_over(void);
/* Before the first of a new engine comes. */
void ekiden_begin_anew(void);
/* This text is about to go: if it is the newest reason, a copy is. Serialised by the caller. */
void ekiden_keep_reason(const struct ekiden_text *text);

/* The first reason of a policy that has panicked stays. */
void ekiden_keep_first(const struct ekiden_host_table *host, const char *text, size_t len);
/* A policy that runs, or that does not yet, has panicked. */
void __noreturn ekiden_policy_fault(const struct ekiden_host_table *host);
void __noreturn ekiden_candidate_fault(const struct ekiden_host_table *host);

/* The engine itself has panicked. All policies end with it. */
void ekiden_c_fault(const char *text, size_t len);
/* Called by the engine, on the CPU on which it happened. */
void ekiden_c_policy_faulted(u32 number);
/* The machine is to stop as it is, for a debugger, when a task changes its state in an unexpected way. */
void ekiden_c_stop(const char *text, size_t len);

/* ---- answers.c ---- */

u64 ekiden_c_now_ns(void);
bool ekiden_c_may_run(const struct task_struct *p, u32 cpu);
void ekiden_c_allowed_cpus(const struct task_struct *p, u64 *words, size_t len);

/* ---- user.c ---- */

void ekiden_set_up_refills(void);
void ekiden_cancel_refills(void);
/* The next two are called by the engine with interrupts off. */
void ekiden_c_refill_at(u64 at_ns);
bool ekiden_c_look_at_return(void);
/* Called by the engine in an interrupt: 0 if it has found another task, 1 if this one in the kernel, 2 if in user mode. */
u32 ekiden_c_interrupted(const struct task_struct *p);
bool ekiden_c_is_at_user(const struct task_struct *p);

/* ---- wait.c: what the Rust half of each policy module calls ---- */

struct ekiden_wait;
void ekiden_wait_begin(struct ekiden_wait *wait);
u32 ekiden_wait_look(struct ekiden_wait *wait);
void ekiden_wait_end(const struct ekiden_wait *wait);

/* ---- modules.c: policies that could run ---- */

struct ekiden_policy {
	const struct ekiden_policy_table *table;
	struct module *owner;
	struct list_head node;
};

/* A policy with what it was made of. */
struct ekiden_instance {
	const struct ekiden_policy *policy;
	u32 number; /* from 1, by which recordings know it; 0 until it runs */
	void *arena;
	struct ekiden_create args;
	struct ekiden_host_table host;
	u32 *topology;
	char *params;
	void *saved;
	/* Why it panicked: the first reason, complete before another CPU sees it. It is in one of `words`, in which each CPU has room. */
	const struct ekiden_text *reason;
	struct ekiden_text __percpu *words;
};

/* Orders loading, creating, closing and freeing. Never taken in a scheduling call. */
extern struct mutex ekiden_control;
extern struct list_head ekiden_policies;

bool ekiden_policy_runs(const struct ekiden_policy *policy);
const struct ekiden_policy *ekiden_find_policy(const char *name);
const struct ekiden_policy *ekiden_find_module_policy(const char *name);
struct ekiden_instance *ekiden_new_instance(const struct ekiden_policy *policy, const struct ekiden_create_request *request,
					    const struct ekiden_instance *other);
void ekiden_free_instance(struct ekiden_instance *instance);
void ekiden_forget_saved(struct ekiden_instance *instance);
long ekiden_policy_refused(struct ekiden_instance *instance, s64 ret, struct ekiden_text *reason);
void *ekiden_copy_in(u64 from, size_t len);

/* ---- policy_slots.c: policies that run; all under `ekiden_control` ---- */

/* An instance that was replaced in a policy slot: calls of it may still be in the rings. */
struct ekiden_past_instance {
	u32 number;
	char name[EKIDEN_NAME_LEN];
	char *params;
	size_t params_len;
};

/* How many replaced instances are kept. */
#define EKIDEN_PAST_INSTANCES 32

struct ekiden_policy_slot {
	struct ekiden_instance *now;
	struct ekiden_instance *faulted; /* one that took over and panicked in doing so: its memory may be in use */
	struct file *controller;	 /* open while its loader runs */
	u32 access;			 /* EKIDEN_CREATE_OPEN, EKIDEN_CREATE_GROUP, or root only */
	kgid_t group;
	struct ekiden_call_log call_log;
	bool call_log_runs;
	const struct ekiden_text *fault; /* why it was taken out: a reason of its instance, or no text */
	u64 faulted_ns;			 /* and when, by the monotonic clock */
	u64 upgrades;			 /* how often another one has taken over */
	u64 wait_ns, wait_ns_max;	 /* how long a CPU waited the last time, and the longest time */
	struct ekiden_past_instance past[EKIDEN_PAST_INSTANCES];
	u32 nr_past; /* how many there have been; the newest are kept */
};

/* The kernel calls us between ops.init and ops.exit; and cannot begin to while what it would call is freed. */
#define EKIDEN_DETACHED 0
#define EKIDEN_ATTACHED 1
#define EKIDEN_LEAVING 2

struct ekiden_policy_slots {
	u32 nr;	      /* policy slots that are taken */
	u32 attached; /* one of these */
	void *engine_arena;
	struct ekiden_policy_slot policy_slots[EKIDEN_POLICY_SLOTS];
};

extern struct ekiden_policy_slots ekiden_running;

long ekiden_create_policy(struct file *file, struct ekiden_create_request *request, struct ekiden_text *reason);
void ekiden_let_go(struct file *file);
void ekiden_reap(void);
long ekiden_reorder(const struct ekiden_order_request *request);
long ekiden_set_share(const struct ekiden_share_request *request, const u64 *cpus);
long ekiden_run_call_log_of(u32 policy_slot, bool on);
void ekiden_run_call_log(struct ekiden_policy_slot *policy_slot, const struct ekiden_instance *instance, u32 what);
void ekiden_now_runs(struct ekiden_policy_slot *policy_slot, struct ekiden_instance *instance);
void ekiden_remember_instance(struct ekiden_policy_slot *policy_slot, struct ekiden_instance *instance);
struct ekiden_policy_slot *ekiden_policy_slot_of(u32 number);
/* Whether its policy is called. */
bool ekiden_is_alive(const struct ekiden_policy_slot *policy_slot);
bool ekiden_is_default(const struct ekiden_policy_slot *policy_slot);
u32 ekiden_default_policy_slot(void);
u32 ekiden_next_instance(void);

/* ---- main.c ---- */

/* Whether the caller may have what the policy in a policy slot does for its tasks. */
bool ekiden_may_enter(const struct ekiden_policy_slot *policy_slot);

/* ---- queues.c ---- */

/* Whether any is open; and what is to be done then after each event. */
extern bool ekiden_any_queue;
void ekiden_look_at_queues(void);
u32 ekiden_c_notify(const struct ekiden_host_table *host, u32 number, const void *bytes, size_t len);
long ekiden_open_queue(struct ekiden_open_request *request, void __user *arg, struct ekiden_text *reason);
/* In any context. */
void ekiden_queues_lose_policy(u32 policy_slot);
void ekiden_queues_tell_again(void);
void ekiden_queues_forget_policy(u32 policy_slot);
void ekiden_queues_change_policy(u32 policy_slot, const struct ekiden_queue_geometry *before,
				 const struct ekiden_queue_geometry *now);
void ekiden_queues_meet_policy(u32 policy_slot, bool has_state);
int ekiden_put_queues(char *to, size_t size, u32 policy_slot);
int ekiden_queues_begin(void);
void ekiden_queues_ended(void);

/* ---- starved.c ---- */

/* From when there is an engine until just before there is none. */
void ekiden_watch_tasks(void);
void ekiden_watch_no_tasks(void);
void ekiden_watch_suspends(void);
void ekiden_watch_no_suspends(void);
/* Called by the engine for a task that waits. */
bool ekiden_c_is_in_read_section(const struct task_struct *p);

/* ---- trace.c ---- */

DECLARE_TRACEPOINT(ekiden_event);
/* Only if that is enabled. */
void ekiden_do_trace(const struct ekiden_event *event, const struct ekiden_outcome *outcome);
/* For tracepoints, and for those that poll /dev/ekiden: something happens to the policy in a policy slot, perhaps for a reason. */
void ekiden_say_of(const char *what, const struct ekiden_policy_slot *policy_slot, const struct ekiden_text *text);

/* ---- upgrade.c ---- */

size_t ekiden_saved_most(u32 max_tasks);
s64 ekiden_save(struct ekiden_policy_slot *policy_slot, void *bytes, size_t len);
long ekiden_upgrade(struct ekiden_upgrade_request *request, struct ekiden_text *reason);

/* ---- status.c ---- */

struct poll_table_struct;
struct seq_file;
/* So that seq_read() reads what /dev/ekiden says; single_release() ends it. */
int ekiden_control_open(struct inode *inode, struct file *file);
/*
 * EPOLLPRI, for root, when something has happened to a policy since the file was opened or last read from its beginning: it
 * came, left, was taken out or upgraded, or the kernel began or ended to call policies.
 */
__poll_t ekiden_control_poll(struct file *file, struct poll_table_struct *table);
/*
 * In any context but an NMI. A CPU that has gone offline wakes up no reader: where a policy is taken out there, the timer
 * that gives its tasks to others calls ekiden_wake_readers().
 */
void ekiden_status_changed(void);
void ekiden_wake_readers(void);
void ekiden_status_ended(void);
int ekiden_proc_show(struct seq_file *file, void *unused);

#endif
