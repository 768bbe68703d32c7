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
#include <linux/workqueue.h>
#ifdef CONFIG_X86_64
#include <asm/tsc.h>
#endif
#include "host.h"

struct ekiden_seats ekiden_running;
int ekiden_asks_for_cpu;

/* How many instances of policies there have been; the newest has this number. */
u32 ekiden_next_instance(void)
{
	static u32 instances;

	return ++instances;
}

struct ekiden_seat *ekiden_seat_of(u32 number)
{
	struct ekiden_seat *seat = number < EKIDEN_SEATS ? &ekiden_running.seats[number] : NULL;

	return seat && seat->now ? seat : NULL;
}

bool ekiden_is_alive(const struct ekiden_seat *seat)
{
	return !ekiden_is_broken() && ekiden_rs_is_alive(seat - ekiden_running.seats);
}

u32 ekiden_default_seat(void)
{
	return ekiden_rs_default();
}

bool ekiden_is_default(const struct ekiden_seat *seat)
{
	return seat - ekiden_running.seats == ekiden_default_seat();
}

/* ---- recording ---- */

static size_t tape_len(u64 records)
{
	return PAGE_ALIGN(nr_cpu_ids * (EKIDEN_TAPE_PAGE + records * 64));
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
void ekiden_run_tape(struct ekiden_seat *seat, const struct ekiden_instance *instance, u32 what)
{
	if (seat->tape.base)
		ekiden_run_guarded(instance->policy->table->tape, &seat->tape, what, 0, 0, 0);
	seat->tape_runs = seat->tape.base && what != EKIDEN_TAPE_STOP;
}

struct tape_switch {
	struct ekiden_seat *seat;
	bool on;
};

/* All other CPUs stand still. */
static s64 switch_tape(void *data)
{
	const struct tape_switch *to = data;

	if (to->seat->tape_runs != to->on)
		ekiden_run_tape(to->seat, to->seat->now, to->on ? EKIDEN_TAPE_GO_ON : EKIDEN_TAPE_STOP);
	return 0;
}

long ekiden_run_tape_of(u32 number, bool on)
{
	struct tape_switch to = { .seat = ekiden_seat_of(number), .on = on };
	u64 wait_ns;
	s64 done;

	if (!to.seat || !to.seat->tape.base || !ekiden_is_alive(to.seat))
		return -ENODEV;
	return ekiden_stop_cpus(switch_tape, &to, &done, &wait_ns);
}

/* ---- going ---- */

static void free_seat(struct ekiden_seat *seat)
{
	ekiden_say_of("removed", seat, NULL);
	ekiden_queues_forget_policy(seat - ekiden_running.seats);
	/* So that the next instance of this module does not write there before it is told where. */
	preempt_disable();
	if (seat->now)
		ekiden_run_tape(seat, seat->now, EKIDEN_TAPE_STOP);
	if (seat->fallen)
		ekiden_run_tape(seat, seat->fallen, EKIDEN_TAPE_STOP);
	preempt_enable();
	if (seat->now)
		ekiden_running.nr--;
	ekiden_free_instance(seat->now);
	ekiden_free_instance(seat->fallen);
	/* Whoever has it mapped keeps the pages. */
	vfree(seat->tape.base);
	memset(seat, 0, sizeof(*seat));
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
	for (i = 0; i < EKIDEN_SEATS; i++)
		free_seat(&ekiden_running.seats[i]);
	vfree(ekiden_running.engine_arena);
	memset(&ekiden_running, 0, sizeof(ekiden_running));
}

/* All other CPUs stand still. */
static s64 remove(void *seat)
{
	return ekiden_run_guarded(ekiden_rs_remove, (struct ekiden_seat *)seat - ekiden_running.seats, 0, 0, 0, 0);
}

static void what_is_asked(void)
{
	bool any = ekiden_rs_calls() & BIT_ULL(EKIDEN_CALL_SELECT_TASK_RQ);

	WRITE_ONCE(ekiden_asks_for_cpu, !any ? 0 : ekiden_running.nr > 1 ? 2 : 1);
}

/* The controller of a policy has closed its file while other policies run: they get its tasks. */
static long leave_others(struct ekiden_seat *seat)
{
	u64 wait_ns;
	s64 removed;
	int ret = ekiden_stop_cpus(remove, seat, &removed, &wait_ns);

	if (ret)
		return ret;
	what_is_asked();
	/* If that fails all of them are gone, and so is the reason for it. */
	ekiden_introduce_tasks();
	free_seat(seat);
	return 0;
}

/* Frees policies whose controller is closed and that sched_ext calls no longer. False if something has to be tried again. */
static bool clear_up(void)
{
	bool answered = false, done = true;
	u32 i;

	for (i = 0; i < EKIDEN_SEATS; i++)
		answered |= !!ekiden_running.seats[i].controller;
	if (!answered) {
		/* sched_ext may still call us, and says so when it stops. */
		if (ekiden_running.nr && !READ_ONCE(ekiden_running.attached))
			free_all();
		return true;
	}
	if (!READ_ONCE(ekiden_running.attached) || ekiden_is_over())
		return true;
	for (i = 0; i < EKIDEN_SEATS; i++)
		if (ekiden_running.seats[i].now && !ekiden_running.seats[i].controller)
			done &= !leave_others(&ekiden_running.seats[i]);
	return done;
}

static void reap_again(struct work_struct *work)
{
	ekiden_reap();
}

static DECLARE_DELAYED_WORK(reap_work, reap_again);

void ekiden_reap(void)
{
	bool done;

	mutex_lock(&ekiden_control);
	done = clear_up();
	mutex_unlock(&ekiden_control);
	if (!done)
		schedule_delayed_work(&reap_work, HZ / 10);
}

void ekiden_seats_ended(void);
void ekiden_seats_ended(void)
{
	cancel_delayed_work_sync(&reap_work);
}

/* The loader is gone, by whatever way: without a controller a policy only lives until others have its tasks. */
void ekiden_let_go(struct file *file)
{
	bool any = false;
	u32 i;

	mutex_lock(&ekiden_control);
	for (i = 0; i < EKIDEN_SEATS; i++) {
		if (ekiden_running.seats[i].controller == file) {
			ekiden_running.seats[i].controller = NULL;
			any = true;
		}
	}
	mutex_unlock(&ekiden_control);
	if (any)
		ekiden_reap();
}

/* ---- coming ---- */

void ekiden_now_runs(struct ekiden_seat *seat, struct ekiden_instance *instance)
{
	instance->host.fault = ekiden_running_host.fault;
	seat->now = instance;
	what_is_asked();
}

static int set_up_tape(struct ekiden_seat *seat, u64 records)
{
	if (records)
		seat->tape.base = vmalloc_user(tape_len(records));
	if (records && !seat->tape.base)
		return -ENOMEM;
	seat->tape.records = records;
	seat->tape.cpus = nr_cpu_ids;
	seat->tape.ticks_khz = ticks_khz();
	seat->tape.instance = ekiden_next_instance();
	return 0;
}

/* The engine's own memory, in blocks of powers of two: what is kept of each task, and a little for CPUs and groups. */
static size_t engine_arena_len(u32 max_tasks)
{
	return roundup_pow_of_two(max_tasks) * 192 + nr_cpu_ids * 2048 + SZ_1M;
}

/* The first policy comes together with the engine. */
static long create_first(struct ekiden_seat *seat, struct ekiden_instance *instance, u32 max_tasks, struct ekiden_text *reason)
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
	if (!ret)
		ekiden_run_tape(seat, instance, EKIDEN_TAPE_BEGIN);
	preempt_enable();
	if (!ret)
		ekiden_watch_tasks();
	return ret ? ekiden_policy_refused(instance, ret, reason) : 0;
}

/*
 * Whatever events did not see is over when this returns. Each of them is in an operation of sched_ext, an interrupt or a
 * kfunc, with its CPU kept. So no CPU has to stand still, and one that has lost its processor is waited for, however long
 * that takes.
 */
static u64 wait_for_events(void)
{
	u64 start = ktime_get_mono_fast_ns();

	synchronize_rcu();
	return ktime_get_mono_fast_ns() - start;
}

/* The engine has a seat for it, or an error. */
static s64 come(struct ekiden_seat *seat, struct ekiden_instance *instance, void *made)
{
	unsigned long flags;
	s64 number;

	/* It takes locks that calls in an interrupt may want. */
	local_irq_save(flags);
	ekiden_run_tape(seat, instance, EKIDEN_TAPE_BEGIN);
	/* From here on it is a policy like the others. */
	instance->host.fault = ekiden_running_host.fault;
	number = ekiden_run_guarded(ekiden_rs_come, instance->policy->table, made, 0, 0, 0);
	local_irq_restore(flags);
	return number;
}

/* All CPUs ask it. */
static s64 has_come(u64 number, bool is_default)
{
	struct ekiden_outcome outcome = {};
	s64 ret;

	rcu_read_lock();
	preempt_disable();
	local_irq_disable();
	ret = ekiden_run_guarded(ekiden_rs_has_come, number, is_default, &outcome, 0, 0);
	local_irq_enable();
	if (ret != LEFT)
		ekiden_carry_out(&outcome);
	preempt_enable();
	rcu_read_unlock();
	return ret;
}

/* Another policy comes to those that run, which go on meanwhile. */
static long create_another(struct ekiden_seat *seat, struct ekiden_instance *instance, bool is_default, struct ekiden_text *reason)
{
	u64 waited_ns = 0;
	s64 number, ret;
	void *made;

	preempt_disable();
	made = (void *)ekiden_run_guarded(instance->policy->table->create, &instance->args, 0, 0, 0, 0);
	preempt_enable();
	if ((s64)made == LEFT)
		return ekiden_policy_refused(instance, LEFT, reason);
	if (!made)
		return ekiden_policy_refused(instance, -EINVAL, reason);
	if (ekiden_rs_begin_several())
		waited_ns = wait_for_events();
	number = come(seat, instance, made);
	if (number < 0) {
		wait_for_events();
		return number == LEFT ? -EIO : number;
	}
	/* The engine takes the first seat that is free, and so do we. */
	WARN_ON_ONCE(&ekiden_running.seats[number] != seat);
	waited_ns += wait_for_events();
	ekiden_note_grace(waited_ns);
	ret = has_come(number, is_default);
	if (ret != LEFT)
		return 0;
	/* The engine has panicked, and what is freed now is not called. */
	wait_for_events();
	return -EIO;
}

static struct ekiden_seat *free_one(void)
{
	u32 i;

	for (i = 0; i < EKIDEN_SEATS; i++)
		if (!ekiden_running.seats[i].now)
			return &ekiden_running.seats[i];
	return NULL;
}

long ekiden_create_policy(struct file *file, struct ekiden_create_request *request, struct ekiden_text *reason)
{
	const struct ekiden_instance *other = ekiden_running.nr ? ekiden_running.seats[ekiden_default_seat()].now : NULL;
	const struct ekiden_policy *policy = ekiden_find_policy(request->policy);
	struct ekiden_instance *instance;
	struct ekiden_seat *seat;
	long ret;

	if (ekiden_running.nr && (!(request->flags & EKIDEN_CREATE_JOIN) || !READ_ONCE(ekiden_running.attached)))
		return -EBUSY;
	if (ekiden_running.nr && ekiden_is_over())
		return -EIO;
	if (!policy)
		return -ENOENT;
	seat = free_one();
	if (!seat)
		return -EUSERS;
	if (other) {
		request->max_tasks = other->args.max_tasks;
		request->topology_len = other->args.topology_len;
	}
	instance = ekiden_new_instance(policy, request, other);
	if (IS_ERR(instance))
		return PTR_ERR(instance);
	ret = set_up_tape(seat, request->tape_records);
	if (!ret && other)
		ret = create_another(seat, instance, request->flags & EKIDEN_CREATE_DEFAULT, reason);
	else if (!ret)
		ret = create_first(seat, instance, request->max_tasks, reason);
	if (ret) {
		if (!other) {
			ekiden_rs_forget();
			vfree(ekiden_running.engine_arena);
			ekiden_running.engine_arena = NULL;
		}
		preempt_disable();
		ekiden_run_tape(seat, instance, EKIDEN_TAPE_STOP);
		preempt_enable();
		ekiden_free_instance(instance);
		vfree(seat->tape.base);
		memset(seat, 0, sizeof(*seat));
		return ret;
	}
	seat->now = instance;
	seat->access = request->flags & (EKIDEN_CREATE_OPEN | EKIDEN_CREATE_GROUP);
	seat->group = make_kgid(current_user_ns(), request->group);
	/* From here on the kernel may attach. */
	smp_store_release(&ekiden_running.nr, ekiden_running.nr + 1);
	seat->controller = file;
	ekiden_now_runs(seat, instance);
	ekiden_say_of("created", seat, NULL);
	request->seat = seat - ekiden_running.seats;
	if (other && request->flags & EKIDEN_CREATE_DEFAULT)
		ekiden_introduce_tasks();
	return 0;
}

/* ---- in which order, and who has which CPUs and weight ---- */

static void all_see(void)
{
	struct ekiden_outcome outcome = {};

	ekiden_note_grace(wait_for_events());
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
	done = ekiden_run_guarded(ekiden_rs_reorder, request->seats, request->len, 0, 0, 0);
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
