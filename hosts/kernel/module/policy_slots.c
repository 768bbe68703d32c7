// SPDX-License-Identifier: GPL-2.0-only
/* Policies that run: they come, get the tasks that are theirs, and go, one without the others. All under `ekiden_control`. */
#include <linux/cpumask.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/vmalloc.h>
#ifdef CONFIG_X86_64
#include <asm/tsc.h>
#endif
#include "host.h"

struct ekiden_policy_slots ekiden_running;
int ekiden_asks_for_cpu;

/* How many instances of policies there have been; the newest has this number. */
u32 ekiden_next_instance(void)
{
	static u32 instances;

	return ++instances;
}

struct ekiden_policy_slot *ekiden_policy_slot_of(u32 number)
{
	struct ekiden_policy_slot *policy_slot = number < EKIDEN_POLICY_SLOTS ? &ekiden_running.policy_slots[number] : NULL;

	return policy_slot && policy_slot->now ? policy_slot : NULL;
}

bool ekiden_is_alive(const struct ekiden_policy_slot *policy_slot)
{
	return !ekiden_is_broken() && ekiden_rs_is_alive(policy_slot - ekiden_running.policy_slots);
}

u32 ekiden_default_policy_slot(void)
{
	return ekiden_rs_default();
}

bool ekiden_is_default(const struct ekiden_policy_slot *policy_slot)
{
	return policy_slot - ekiden_running.policy_slots == ekiden_default_policy_slot();
}

/* ---- recording ---- */

static size_t call_log_len(u64 records)
{
	return PAGE_ALIGN(nr_cpu_ids * (EKIDEN_CALL_LOG_PAGE + records * 64));
}

/* How fast the counter goes that the Rust half reads for times; 0 if it is not to be used. */
static u32 ticks_khz(void)
{
#ifdef CONFIG_X86_64
	if (!check_tsc_unstable())
		return tsc_khz;
#endif
	return 0;
}

/* Has the policy record its calls, or stop doing so. No call is under way. */
void ekiden_run_call_log(struct ekiden_policy_slot *policy_slot, const struct ekiden_instance *instance, u32 what)
{
	if (policy_slot->call_log.base)
		ekiden_run_guarded(instance->policy->table->call_log, &policy_slot->call_log, what, 0, 0, 0);
	policy_slot->call_log_runs = policy_slot->call_log.base && what != EKIDEN_CALL_LOG_STOP;
}

/* Keeps number, name and parameters of an instance that is about to be freed; takes over `params`. */
void ekiden_remember_instance(struct ekiden_policy_slot *policy_slot, struct ekiden_instance *instance)
{
	struct ekiden_past_instance *past = &policy_slot->past[policy_slot->nr_past++ % EKIDEN_PAST_INSTANCES];

	kvfree(past->params);
	past->number = instance->number;
	memcpy(past->name, instance->policy->table->name, EKIDEN_NAME_LEN);
	past->params = instance->params;
	past->params_len = instance->args.params_len;
	instance->params = NULL;
}

static void forget_past(struct ekiden_policy_slot *policy_slot)
{
	u32 i;

	for (i = 0; i < EKIDEN_PAST_INSTANCES; i++)
		kvfree(policy_slot->past[i].params);
}

struct call_log_switch {
	struct ekiden_policy_slot *policy_slot;
	bool on;
};

/* All other CPUs stand still. */
static s64 switch_call_log(void *data)
{
	const struct call_log_switch *to = data;

	if (to->policy_slot->call_log_runs != to->on)
		ekiden_run_call_log(to->policy_slot, to->policy_slot->now, to->on ? EKIDEN_CALL_LOG_GO_ON : EKIDEN_CALL_LOG_STOP);
	return 0;
}

long ekiden_run_call_log_of(u32 number, bool on)
{
	struct call_log_switch to = { .policy_slot = ekiden_policy_slot_of(number), .on = on };
	u64 wait_ns;
	s64 done;

	if (!to.policy_slot || !to.policy_slot->call_log.base || !ekiden_is_alive(to.policy_slot))
		return -ENODEV;
	return ekiden_stop_cpus(switch_call_log, &to, &done, &wait_ns);
}

/* ---- going ---- */

static void free_policy_slot(struct ekiden_policy_slot *policy_slot)
{
	ekiden_say_of("removed", policy_slot, NULL);
	ekiden_queues_forget_policy(policy_slot - ekiden_running.policy_slots);
	/* So that the next instance of this module does not write there before it is told where. */
	preempt_disable();
	if (policy_slot->now)
		ekiden_run_call_log(policy_slot, policy_slot->now, EKIDEN_CALL_LOG_STOP);
	if (policy_slot->faulted)
		ekiden_run_call_log(policy_slot, policy_slot->faulted, EKIDEN_CALL_LOG_STOP);
	preempt_enable();
	if (policy_slot->now)
		ekiden_running.nr--;
	ekiden_free_instance(policy_slot->now);
	ekiden_free_instance(policy_slot->faulted);
	forget_past(policy_slot);
	/* A process that has it mapped keeps the pages. */
	vfree(policy_slot->call_log.base);
	memset(policy_slot, 0, sizeof(*policy_slot));
}

/* The kernel calls none of the policies, and cannot begin to. */
static void free_all(void)
{
	u32 i;

	/* It may just have attached; it says when it stops. */
	if (cmpxchg(&ekiden_running.attached, EKIDEN_DETACHED, EKIDEN_LEAVING) != EKIDEN_DETACHED)
		return;
	ekiden_watch_no_tasks();
	ekiden_cancel_timers();
	ekiden_rs_forget();
	for (i = 0; i < EKIDEN_POLICY_SLOTS; i++)
		free_policy_slot(&ekiden_running.policy_slots[i]);
	vfree(ekiden_running.engine_arena);
	ekiden_running.engine_arena = NULL;
	WRITE_ONCE(ekiden_running.nr, 0);
	/* Last. Pairs with the exchange in ekiden_do_attach(): who attaches from here on sees that there is no policy. */
	smp_store_release(&ekiden_running.attached, EKIDEN_DETACHED);
}

static void what_is_asked(void)
{
	bool any = ekiden_rs_calls() & BIT_ULL(EKIDEN_CALL_SELECT_TASK_RQ);

	WRITE_ONCE(ekiden_asks_for_cpu, !any ? 0 : ekiden_running.nr > 1 ? 2 : 1);
}

/* How long tasks may wait that an event still gave to a policy that goes. */
#define REST_US 5000

/*
 * The controller of a policy has closed its file while other policies run, which go on meanwhile: they get its tasks. Tasks that
 * wait at once, and what is left of them while events go on that have begun before. One of these tasks may be in the middle of what
 * RCU waits for.
 */
static void leave_others(struct ekiden_policy_slot *policy_slot)
{
	u64 start = ktime_get_mono_fast_ns();
	u32 number = policy_slot - ekiden_running.policy_slots;
	unsigned long events;

	preempt_disable();
	ekiden_run_guarded(ekiden_rs_leave, number, 0, 0, 0, 0);
	preempt_enable();
	events = start_poll_synchronize_rcu();
	do {
		/* If that fails all policies are gone, and so is the reason for it. */
		ekiden_introduce_tasks();
		usleep_range(REST_US / 2, REST_US);
	} while (!poll_state_synchronize_rcu(events));
	ekiden_note_grace(ktime_get_mono_fast_ns() - start);
	preempt_disable();
	ekiden_run_guarded(ekiden_rs_has_left, number, 0, 0, 0, 0);
	preempt_enable();
	/* All that do not wait. */
	ekiden_introduce_tasks();
	free_policy_slot(policy_slot);
	what_is_asked();
}

/* Frees policies whose controller is closed and that sched_ext calls no longer. */
static void clear_up(void)
{
	bool answered = false;
	u32 i;

	for (i = 0; i < EKIDEN_POLICY_SLOTS; i++)
		answered |= !!ekiden_running.policy_slots[i].controller;
	if (!answered) {
		/* sched_ext may still call us, and says so when it stops. */
		if (ekiden_running.nr && !READ_ONCE(ekiden_running.attached))
			free_all();
		return;
	}
	if (!READ_ONCE(ekiden_running.attached) || ekiden_is_over())
		return;
	for (i = 0; i < EKIDEN_POLICY_SLOTS; i++)
		if (ekiden_running.policy_slots[i].now && !ekiden_running.policy_slots[i].controller)
			leave_others(&ekiden_running.policy_slots[i]);
}

void ekiden_reap(void)
{
	mutex_lock(&ekiden_control);
	clear_up();
	mutex_unlock(&ekiden_control);
}

/* The loader is gone, by whatever way: without a controller a policy only lives until others have its tasks. */
void ekiden_let_go(struct file *file)
{
	bool any = false;
	u32 i;

	mutex_lock(&ekiden_control);
	for (i = 0; i < EKIDEN_POLICY_SLOTS; i++) {
		if (ekiden_running.policy_slots[i].controller == file) {
			ekiden_running.policy_slots[i].controller = NULL;
			any = true;
		}
	}
	mutex_unlock(&ekiden_control);
	if (any)
		ekiden_reap();
}

/* ---- coming ---- */

void ekiden_now_runs(struct ekiden_policy_slot *policy_slot, struct ekiden_instance *instance)
{
	instance->host.fault = ekiden_running_host.fault;
	policy_slot->now = instance;
	what_is_asked();
}

static int set_up_call_log(struct ekiden_policy_slot *policy_slot, u64 records)
{
	if (records)
		policy_slot->call_log.base = vmalloc_user(call_log_len(records));
	if (records && !policy_slot->call_log.base)
		return -ENOMEM;
	policy_slot->call_log.records = records;
	policy_slot->call_log.cpus = nr_cpu_ids;
	policy_slot->call_log.ticks_khz = ticks_khz();
	policy_slot->call_log.instance = ekiden_next_instance();
	return 0;
}

/* The engine's own memory, in blocks of powers of two: what is kept of each task, and a little for CPUs and groups. */
static size_t engine_arena_len(u32 max_tasks)
{
	return roundup_pow_of_two(max_tasks) * 192 + nr_cpu_ids * 2048 + SZ_1M;
}

/* The first policy comes together with the engine. */
static long create_first(struct ekiden_policy_slot *policy_slot, struct ekiden_instance *instance, u32 max_tasks,
			 struct ekiden_text *reason)
{
	size_t len = engine_arena_len(max_tasks);
	s64 ret;

	ekiden_running.engine_arena = __vmalloc(len, GFP_KERNEL | __GFP_NOWARN | __GFP_ZERO);
	if (!ekiden_running.engine_arena)
		return -ENOMEM;
	ekiden_begin_anew();
	preempt_disable();
	ret = ekiden_run_guarded(ekiden_rs_create, instance->policy->table, &instance->args, ekiden_running.engine_arena, len,
				 nr_cpu_ids);
	/* What was saved is not on the call log: it cannot be replayed from there. */
	if (!ret)
		ekiden_run_call_log(policy_slot, instance,
				    instance->args.saved_len ? EKIDEN_CALL_LOG_GO_ON : EKIDEN_CALL_LOG_BEGIN);
	preempt_enable();
	if (!ret)
		ekiden_watch_tasks();
	return ret ? ekiden_policy_refused(instance, ret, reason) : 0;
}

/* The engine has a policy slot for it, or an error. */
static s64 come(struct ekiden_policy_slot *policy_slot, struct ekiden_instance *instance, void *made)
{
	u64 start_ns;
	s64 number;

	/* It takes locks that calls in an interrupt may want. */
	local_irq_disable();
	start_ns = ekiden_times_begin();
	ekiden_run_call_log(policy_slot, instance, EKIDEN_CALL_LOG_BEGIN);
	/* From here on it is a policy like the others. */
	instance->host.fault = ekiden_running_host.fault;
	number = ekiden_run_guarded(ekiden_rs_come, instance->policy->table, made, 0, 0, 0);
	ekiden_times_end(EKIDEN_TIME_COME, start_ns);
	local_irq_enable();
	return number;
}

/* All CPUs ask it. */
static s64 has_come(u64 number, bool is_default)
{
	struct ekiden_outcome outcome = {};
	u64 start_ns;
	s64 ret;

	rcu_read_lock();
	preempt_disable();
	local_irq_disable();
	start_ns = ekiden_times_begin();
	ret = ekiden_run_guarded(ekiden_rs_has_come, number, is_default, &outcome, 0, 0);
	ekiden_times_end(EKIDEN_TIME_COME, start_ns);
	local_irq_enable();
	if (ret != LEFT)
		ekiden_carry_out(&outcome);
	preempt_enable();
	rcu_read_unlock();
	return ret;
}

/* Another policy comes to those that run, which go on meanwhile. */
static long create_another(struct ekiden_policy_slot *policy_slot, struct ekiden_instance *instance, bool is_default,
			   struct ekiden_text *reason)
{
	u64 waited_ns = 0;
	s64 number;
	void *made;

	preempt_disable();
	made = (void *)ekiden_run_guarded(instance->policy->table->create, &instance->args, 0, 0, 0, 0);
	preempt_enable();
	if (!made || (s64)made == LEFT)
		return ekiden_policy_refused(instance, made ? LEFT : -EINVAL, reason);
	if (ekiden_rs_begin_several())
		waited_ns = ekiden_wait_for_events();
	number = come(policy_slot, instance, made);
	if (number < 0) {
		ekiden_wait_for_events();
		return number == LEFT ? -EIO : number;
	}
	/* The engine takes the first policy slot that is free, and so do we. */
	WARN_ON_ONCE(&ekiden_running.policy_slots[number] != policy_slot);
	waited_ns += ekiden_wait_for_events();
	ekiden_note_grace(waited_ns);
	if (has_come(number, is_default) != LEFT)
		return 0;
	/* The engine has panicked, and what is freed now is not called. */
	ekiden_wait_for_events();
	return -EIO;
}

static struct ekiden_policy_slot *free_one(void)
{
	u32 i;

	for (i = 0; i < EKIDEN_POLICY_SLOTS; i++)
		if (!ekiden_running.policy_slots[i].now)
			return &ekiden_running.policy_slots[i];
	return NULL;
}

long ekiden_create_policy(struct file *file, struct ekiden_create_request *request, struct ekiden_text *reason)
{
	const struct ekiden_instance *other = ekiden_running.nr ? ekiden_running.policy_slots[ekiden_default_policy_slot()].now
								: NULL;
	const struct ekiden_policy *policy = ekiden_find_policy(request->policy);
	struct ekiden_instance *instance;
	struct ekiden_policy_slot *policy_slot;
	long ret;

	if (ekiden_running.nr && (!(request->flags & EKIDEN_CREATE_JOIN) || !READ_ONCE(ekiden_running.attached)))
		return -EBUSY;
	if (ekiden_running.nr && ekiden_is_over())
		return -EIO;
	if (!policy)
		return -ENOENT;
	policy_slot = free_one();
	if (!policy_slot)
		return -EUSERS;
	if (other) {
		request->max_tasks = other->args.max_tasks;
		request->topology_len = other->args.topology_len;
	}
	instance = ekiden_new_instance(policy, request, other);
	if (IS_ERR(instance))
		return PTR_ERR(instance);
	ret = set_up_call_log(policy_slot, request->call_log_records);
	instance->number = policy_slot->call_log.instance;
	if (!ret && other)
		ret = create_another(policy_slot, instance, request->flags & EKIDEN_CREATE_DEFAULT, reason);
	else if (!ret)
		ret = create_first(policy_slot, instance, request->max_tasks, reason);
	if (ret) {
		if (!other) {
			ekiden_rs_forget();
			vfree(ekiden_running.engine_arena);
			ekiden_running.engine_arena = NULL;
		}
		preempt_disable();
		ekiden_run_call_log(policy_slot, instance, EKIDEN_CALL_LOG_STOP);
		preempt_enable();
		ekiden_free_instance(instance);
		vfree(policy_slot->call_log.base);
		memset(policy_slot, 0, sizeof(*policy_slot));
		return ret;
	}
	ekiden_forget_saved(instance);
	policy_slot->now = instance;
	policy_slot->access = request->flags & (EKIDEN_CREATE_OPEN | EKIDEN_CREATE_GROUP);
	policy_slot->group = make_kgid(current_user_ns(), request->group);
	/* From here on the kernel may attach. */
	smp_store_release(&ekiden_running.nr, ekiden_running.nr + 1);
	policy_slot->controller = file;
	ekiden_now_runs(policy_slot, instance);
	ekiden_say_of("created", policy_slot, NULL);
	request->policy_slot = policy_slot - ekiden_running.policy_slots;
	if (other && request->flags & EKIDEN_CREATE_DEFAULT)
		ekiden_introduce_tasks();
	return 0;
}

/* ---- the order of policies, their CPUs and weights ---- */

static void all_see(void)
{
	struct ekiden_outcome outcome = {};

	ekiden_note_grace(ekiden_wait_for_events());
	rcu_read_lock();
	preempt_disable();
	if (ekiden_run_guarded(ekiden_rs_all_see, &outcome, 0, 0, 0, 0) != LEFT)
		ekiden_carry_out(&outcome);
	preempt_enable();
	rcu_read_unlock();
}

/* What the engine has published is used when every CPU sees it. */
static long published(s64 done)
{
	if (done)
		return done == LEFT ? -EIO : done;
	what_is_asked();
	all_see();
	return 0;
}

long ekiden_reorder(const struct ekiden_order_request *request)
{
	s64 done;

	if (!ekiden_running.nr || ekiden_is_over())
		return -ENODEV;
	preempt_disable();
	done = ekiden_run_guarded(ekiden_rs_reorder, request->policy_slots, request->len, 0, 0, 0);
	preempt_enable();
	return published(done);
}

long ekiden_set_share(const struct ekiden_share_request *request, const u64 *cpus)
{
	s64 done;

	if (!ekiden_running.nr || ekiden_is_over())
		return -ENODEV;
	preempt_disable();
	done = ekiden_run_guarded(ekiden_rs_share, request, cpus, 0, 0, 0);
	preempt_enable();
	return published(done);
}
