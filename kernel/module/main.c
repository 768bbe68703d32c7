// SPDX-License-Identifier: GPL-2.0-only
/*
 * ekiden.ko: the engine (Rust) behind /dev/ekiden and a handful of kfuncs. This half owns what only C can: memory,
 * module references, the device, the guarded entry. It takes no scheduling decision.
 */
#include <linux/bpf.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#ifdef CONFIG_X86_64
#include <asm/tsc.h>
#endif
#include "ekiden.h"
#include "ekiden_control.h"

/* ---- the Rust half ---- */

s64 ekiden_rs_create(const struct ekiden_policy_table *table, struct ekiden_create *args, void *arena, size_t arena_len,
		     u32 nr_cpus);
s64 ekiden_rs_swap(const struct ekiden_policy_table *table, struct ekiden_create *args, void *successor,
		   struct ekiden_outcome *outcome);
s64 ekiden_rs_save(u32 cpu, void *room, size_t len);
s64 ekiden_rs_introduce(u64 first, struct ekiden_outcome *outcome);
u64 ekiden_rs_task_count(void);
s64 ekiden_rs_deliver(struct ekiden_event *event, struct ekiden_outcome *outcome, const void *payload, size_t len);
s64 ekiden_rs_status(char *buffer, size_t len);
void ekiden_rs_forget(void);
void ekiden_rs_silence(void);
u64 ekiden_rs_arena_used(void);
const void *ekiden_rs_host_task(u64 task);
void ekiden_rs_idle_cpus(u64 *words, size_t len);

/* ---- guarded entry, guard_<arch>.S ---- */

typedef s64 (*ekiden_guarded_fn)(u64 a, u64 b, u64 c, u64 d, u64 e);
asmlinkage s64 ekiden_guarded(u64 a, u64 b, u64 c, u64 d, u64 e, ekiden_guarded_fn fn);
asmlinkage void ekiden_leave(s64 result);
DEFINE_PER_CPU(unsigned long, ekiden_guard_sp);

/* What ekiden_guarded() returns when Rust has left by ekiden_leave(). */
#define LEFT (-1000)

#define guarded(fn, a, b, c, d, e) \
	ekiden_guarded((u64)(a), (u64)(b), (u64)(c), (u64)(d), (u64)(e), (ekiden_guarded_fn)(void *)(fn))

/* kfuncs.c */
void ekiden_do_cpu_event(struct ekiden_event *event, struct ekiden_outcome *outcome);
void ekiden_do_enable(struct task_struct *p, struct ekiden_event *event, struct ekiden_outcome *outcome);
void ekiden_do_arm_timer(u32 cpu, u64 delay_ns);
void ekiden_timer_fired(u64 kicks);
int ekiden_do_attach(void);
void ekiden_do_detach(void);
int ekiden_do_fault_text(char *text, u32 size);
int ekiden_register_kfuncs(void);

/* ---- state ---- */

struct policy {
	const struct ekiden_policy_table *table;
	struct module *owner;
	struct list_head node;
};

static LIST_HEAD(policies);
/* Orders loading, creating, closing and freeing. Never taken in a scheduling call. */
static DEFINE_MUTEX(control);

/* A policy with what it was made of. */
struct instance {
	const struct policy *policy;
	void *arena;
	struct ekiden_create args;
	struct ekiden_host_table host;
	u32 *topology;
	char *params;
};

/* The one policy that runs. */
static struct {
	struct instance *now;
	struct instance *fallen;	/* one that took over and panicked in doing so: its memory may be in use */
	struct file *controller;	/* open as long as somebody answers for it */
	bool attached;			/* between ops.init and ops.exit */
	void *engine_arena;
	struct ekiden_tape tape;
	bool tape_runs;
	u64 upgrades;			/* how often another one has taken over */
	u64 wait_ns, wait_ns_max;	/* how long a CPU waited the last time, and the longest time */
} running;

/* Whether it chooses CPUs itself, for BPF to look at. */
bool ekiden_asks_for_cpu;

/* How many instances of policies there have been. */
static u32 instances;

static atomic_t fault_taken = ATOMIC_INIT(0);
static char fault_text[256];
static size_t fault_len;

/* ---- faults ---- */

/* Called by Rust that cannot go on. Keeps the first reason and leaves the call. */
static __noreturn void fault(const char *text, size_t len)
{
	if (!atomic_xchg(&fault_taken, 1)) {
		len = min(len, sizeof(fault_text) - 1);
		memcpy(fault_text, text, len);
		smp_store_release(&fault_len, len);
	}
	ekiden_rs_silence();
	if (!this_cpu_read(ekiden_guard_sp))
		panic("ekiden: Rust panicked outside a guarded call: %.*s", (int)len, text);
	ekiden_leave(LEFT);
	/* Not reached. objtool cannot know that, and a loop keeps the code after it from being fallen into. */
	for (;;)
		cpu_relax();
}

void ekiden_c_fault(const char *text, size_t len);
void ekiden_c_fault(const char *text, size_t len)
{
	fault(text, len);
}

/* Why a policy that is being made cannot go on. There is one at a time. */
static char candidate_text[256];
static size_t candidate_len;

/* The same for a policy that does not run yet: nobody else comes to harm. */
static __noreturn void candidate_fault(const char *text, size_t len)
{
	candidate_len = min(len, sizeof(candidate_text));
	memcpy(candidate_text, text, candidate_len);
	ekiden_leave(LEFT);
	for (;;)
		cpu_relax();
}

int ekiden_do_fault_text(char *text, u32 size)
{
	size_t len = min_t(size_t, smp_load_acquire(&fault_len), size - 1);

	memcpy(text, fault_text, len);
	text[len] = 0;
	return len;
}

/* ---- events ---- */

static __always_inline void deliver(struct ekiden_event *event, struct ekiden_outcome *outcome, const void *payload,
				    size_t len)
{
	unsigned long flags;

	local_irq_save(flags);
	if (unlikely(guarded(ekiden_rs_deliver, event, outcome, payload, len, 0) == LEFT))
		outcome->status = EKIDEN_FAULT;
	local_irq_restore(flags);
}

void ekiden_do_cpu_event(struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	deliver(event, outcome, NULL, 0);
}

/* A task comes under our care: first it gets a place in the engine's table, then its nice value. */
void ekiden_do_enable(struct task_struct *p, struct ekiden_event *event, struct ekiden_outcome *outcome)
{
	struct ekiden_event init = { .kind = EKIDEN_TASK_INIT, .args = { (u64)p, p->pid } };

	deliver(&init, outcome, NULL, 0);
	event->task = outcome->task;
	if (outcome->status == EKIDEN_DONE)
		deliver(event, outcome, NULL, 0);
	outcome->task = event->task;
}

int ekiden_do_attach(void)
{
	int ret = -ENODEV;

	mutex_lock(&control);
	if (running.now && running.controller && !running.attached) {
		running.attached = true;
		ret = 0;
	}
	mutex_unlock(&control);
	return ret;
}

static void reap(struct work_struct *work);
static DECLARE_WORK(reap_work, reap);

void ekiden_do_detach(void)
{
	WRITE_ONCE(running.attached, false);
	schedule_work(&reap_work);
}

/* ---- timers, one per CPU ---- */

struct ekiden_timer {
	struct hrtimer timer;
	u32 cpu;
	u32 tenancy;	/* of whoever armed it */
};

/* Counts policies that took over from a stranger, whose timers mean nothing to them. */
static u32 tenancy;

static DEFINE_PER_CPU(struct ekiden_timer, timers);

/* What a call outside of every operation of sched_ext asks for. After a fault, the next operation on any CPU tells the kernel. */
static void carry_out(const struct ekiden_outcome *outcome)
{
	if (outcome->status == EKIDEN_FAULT)
		ekiden_timer_fired(~0ULL);
	else if (outcome->kicks)
		ekiden_timer_fired(outcome->kicks);
}

static enum hrtimer_restart timer_expired(struct hrtimer *timer)
{
	struct ekiden_timer *own = container_of(timer, struct ekiden_timer, timer);
	struct ekiden_event event = { .kind = EKIDEN_TIMER, .cpu = own->cpu };
	struct ekiden_outcome outcome = {};

	if (own->tenancy != READ_ONCE(tenancy))
		return HRTIMER_NORESTART;
	rcu_read_lock();
	deliver(&event, &outcome, NULL, 0);
	carry_out(&outcome);
	rcu_read_unlock();
	if (outcome.status == EKIDEN_FAULT || !outcome.timer_ns)
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ns_to_ktime(outcome.timer_ns));
	return HRTIMER_RESTART;
}

/* The timer runs on the CPU that arms it, wherever the call that it was for belongs. */
void ekiden_do_arm_timer(u32 cpu, u64 delay_ns)
{
	if (cpu >= nr_cpu_ids)
		return;
	per_cpu_ptr(&timers, cpu)->tenancy = READ_ONCE(tenancy);
	hrtimer_start(&per_cpu_ptr(&timers, cpu)->timer, ns_to_ktime(delay_ns), HRTIMER_MODE_REL_PINNED_HARD);
}

static void set_up_timers(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct ekiden_timer *own = per_cpu_ptr(&timers, cpu);

		own->cpu = cpu;
		hrtimer_setup(&own->timer, timer_expired, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	}
}

static void cancel_timers(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		hrtimer_cancel(&per_cpu_ptr(&timers, cpu)->timer);
}

/* ---- answers to Rust ---- */

u64 ekiden_c_now_ns(void);
u64 ekiden_c_now_ns(void)
{
	return ktime_get_mono_fast_ns();
}

bool ekiden_c_may_run(const struct task_struct *p, u32 cpu);
bool ekiden_c_may_run(const struct task_struct *p, u32 cpu)
{
	if (cpu >= nr_cpu_ids || !cpu_online(cpu) || !cpumask_test_cpu(cpu, p->cpus_ptr))
		return false;
	/* A task that has pinned itself for a moment stays where it is. */
	return !p->migration_disabled || task_cpu(p) == cpu;
}

static void copy_mask(const struct cpumask *mask, u64 *words, size_t len)
{
	size_t i;

	memset(words, 0, len * sizeof(*words));
	for (i = 0; i < min_t(size_t, len, BITS_TO_LONGS(nr_cpu_ids)); i++)
		words[i] = cpumask_bits(mask)[i];
}

void ekiden_c_allowed_cpus(const struct task_struct *p, u64 *words, size_t len);
void ekiden_c_allowed_cpus(const struct task_struct *p, u64 *words, size_t len)
{
	copy_mask(p->cpus_ptr, words, len);
}

static bool may_run(u64 task, u32 cpu)
{
	const struct task_struct *p = ekiden_rs_host_task(task);

	return p && ekiden_c_may_run(p, cpu);
}

static void allowed_cpus(u64 task, u64 *words, size_t len)
{
	const struct task_struct *p = ekiden_rs_host_task(task);

	copy_mask(p ? p->cpus_ptr : cpu_none_mask, words, len);
}

/* For a policy that does not run yet. */
static const struct ekiden_host_table candidate_host = {
	.now_ns = ekiden_c_now_ns,
	.may_run = may_run,
	.allowed_cpus = allowed_cpus,
	.idle_cpus = ekiden_rs_idle_cpus,
	.fault = (void (*)(const char *, size_t))candidate_fault,
};

/* ---- policy modules ---- */

int ekiden_register_policy(const struct ekiden_policy_table *table, struct module *owner)
{
	struct policy *policy;

	if (table->abi_version != EKIDEN_ABI_VERSION || table->size != sizeof(*table)) {
		pr_err("ekiden: policy module %s was built for interface %u, this is %u; build it again\n",
		       module_name(owner), table->abi_version, EKIDEN_ABI_VERSION);
		return -ENOEXEC;
	}
	policy = kzalloc(sizeof(*policy), GFP_KERNEL);
	if (!policy)
		return -ENOMEM;
	policy->table = table;
	policy->owner = owner;
	mutex_lock(&control);
	/* In front of an older version of the same policy. */
	list_add(&policy->node, &policies);
	mutex_unlock(&control);
	return 0;
}
EXPORT_SYMBOL_GPL(ekiden_register_policy);

/* A running policy holds a reference to its module, so this one is not running. */
void ekiden_unregister_policy(const struct ekiden_policy_table *table)
{
	struct policy *policy, *next;

	mutex_lock(&control);
	list_for_each_entry_safe(policy, next, &policies, node) {
		if (policy->table == table) {
			list_del(&policy->node);
			kfree(policy);
		}
	}
	mutex_unlock(&control);
}
EXPORT_SYMBOL_GPL(ekiden_unregister_policy);

/* ---- life of the running policy; all under `control` ---- */

static void free_instance(struct instance *instance)
{
	if (!instance)
		return;
	vfree(instance->arena);
	kvfree(instance->topology);
	kvfree(instance->params);
	if (instance->policy)
		module_put(instance->policy->owner);
	kvfree(instance);
}

/* Has the policy record its calls, or stop doing so. No call is under way. */
static void run_tape(const struct instance *instance, u32 what)
{
	if (running.tape.base)
		guarded(instance->policy->table->tape, &running.tape, what, 0, 0, 0);
	running.tape_runs = running.tape.base && what != EKIDEN_TAPE_STOP;
}

static void free_running(void)
{
	cancel_timers();
	ekiden_rs_forget();
	/* So that the next instance of this module does not write there before it is told where. */
	preempt_disable();
	if (running.now)
		run_tape(running.now, EKIDEN_TAPE_STOP);
	if (running.fallen)
		run_tape(running.fallen, EKIDEN_TAPE_STOP);
	preempt_enable();
	free_instance(running.now);
	free_instance(running.fallen);
	vfree(running.engine_arena);
	/* Whoever has it mapped keeps the pages. */
	vfree(running.tape.base);
	memset(&running, 0, sizeof(running));
}

/* Nobody answers for the policy any more and the kernel does not call it: its memory can go. */
static void reap(struct work_struct *work)
{
	mutex_lock(&control);
	if (running.now && !running.controller && !READ_ONCE(running.attached))
		free_running();
	mutex_unlock(&control);
}

/* A copy of user memory; none of it needs to be there if the length is 0. */
static void *copy_in(u64 from, size_t len)
{
	void *copy = len ? vmemdup_user(u64_to_user_ptr(from), len) : kvzalloc(1, GFP_KERNEL);

	return copy ?: ERR_PTR(-ENOMEM);
}

static const struct policy *find_policy(const char *name)
{
	const struct policy *policy;

	list_for_each_entry(policy, &policies, node)
		if (!strncmp(policy->table->name, name, EKIDEN_NAME_LEN))
			return policy;
	return NULL;
}

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

/* The engine's own memory: the task table, and a little for everything else. */
static size_t engine_arena_len(u32 max_tasks)
{
	return (size_t)max_tasks * 128 + nr_cpu_ids * 256 + SZ_1M;
}

/* What `policy` is made of, from user memory; the topology is that of `other` if there is one. */
static struct instance *new_instance(const struct policy *policy, const struct ekiden_create_request *request,
				     const struct instance *other)
{
	struct instance *instance = kvzalloc(sizeof(*instance), GFP_KERNEL);
	size_t topology_size = request->topology_len * sizeof(u32);
	long ret = -ENOMEM;

	if (!instance)
		return ERR_PTR(-ENOMEM);
	if (!try_module_get(policy->owner)) {
		kvfree(instance);
		return ERR_PTR(-ENOENT);
	}
	instance->policy = policy;
	instance->host = candidate_host;
	instance->params = copy_in(request->params, request->params_len);
	if (IS_ERR(instance->params)) {
		ret = PTR_ERR(instance->params);
		instance->params = NULL;
		goto out;
	}
	if (other)
		instance->topology = kvmemdup(other->topology, topology_size, GFP_KERNEL) ?: ERR_PTR(-ENOMEM);
	else
		instance->topology = copy_in(request->topology, topology_size);
	if (IS_ERR(instance->topology)) {
		ret = PTR_ERR(instance->topology);
		instance->topology = NULL;
		goto out;
	}
	instance->arena = __vmalloc(request->arena_bytes, GFP_KERNEL | __GFP_NOWARN | __GFP_ZERO);
	if (!instance->arena)
		goto out;
	instance->args = (struct ekiden_create) {
		.arena = instance->arena,
		.arena_len = request->arena_bytes,
		.topology = instance->topology,
		.topology_len = request->topology_len,
		.params = instance->params,
		.params_len = request->params_len,
		.max_tasks = request->max_tasks,
		.host = &instance->host,
	};
	candidate_len = 0;
	return instance;
out:
	free_instance(instance);
	return ERR_PTR(ret);
}

/* The reason of a policy that could not be made or looked at, in `args`. */
static long refused(struct ekiden_create *args, s64 ret)
{
	if (ret == LEFT && candidate_len) {
		args->error_len = candidate_len;
		memcpy(args->error, candidate_text, candidate_len);
	} else if (ret == LEFT) {
		/* It was the engine. */
		args->error_len = ekiden_do_fault_text(args->error, sizeof(args->error));
	}
	return -EINVAL;
}

static void now_runs(struct instance *instance)
{
	instance->host.fault = (void (*)(const char *, size_t))fault;
	running.now = instance;
	WRITE_ONCE(ekiden_asks_for_cpu, instance->policy->table->calls & BIT_ULL(EKIDEN_CALL_SELECT_TASK_RQ));
}

/* Room for the reason of a refusal. */
struct reason {
	u32 len;
	char text[256];
};

static void set_reason(struct reason *reason, const char *text, size_t len)
{
	reason->len = min(len, sizeof(reason->text));
	memcpy(reason->text, text, reason->len);
}

static long give_reason(const struct reason *reason, u64 to, u32 room, long ret)
{
	return copy_to_user(u64_to_user_ptr(to), reason->text, min(reason->len, room)) ? -EFAULT : ret;
}

static long create(struct file *file, const struct ekiden_create_request *request, struct reason *reason)
{
	const struct policy *policy = find_policy(request->policy);
	size_t engine_len = engine_arena_len(request->max_tasks);
	struct instance *instance;
	s64 ret;

	if (running.now)
		return -EBUSY;
	if (!policy)
		return -ENOENT;
	instance = new_instance(policy, request, NULL);
	if (IS_ERR(instance))
		return PTR_ERR(instance);
	running.engine_arena = __vmalloc(engine_len, GFP_KERNEL | __GFP_NOWARN | __GFP_ZERO);
	if (request->tape_records)
		running.tape.base = vmalloc_user(tape_len(request->tape_records));
	if (!running.engine_arena || (request->tape_records && !running.tape.base)) {
		free_instance(instance);
		free_running();
		return -ENOMEM;
	}
	running.tape.records = request->tape_records;
	running.tape.cpus = nr_cpu_ids;
	running.tape.ticks_khz = ticks_khz();
	running.tape.instance = ++instances;
	fault_len = 0;
	atomic_set(&fault_taken, 0);
	preempt_disable();
	ret = guarded(ekiden_rs_create, policy->table, &instance->args, running.engine_arena, engine_len, nr_cpu_ids);
	if (!ret)
		run_tape(instance, EKIDEN_TAPE_BEGIN);
	preempt_enable();
	now_runs(instance);
	if (!ret) {
		running.controller = file;
		return 0;
	}
	ret = refused(&instance->args, ret);
	set_reason(reason, instance->args.error, instance->args.error_len);
	free_running();
	return ret;
}

static long ioctl_create(struct file *file, void __user *arg)
{
	struct ekiden_create_request request;
	struct reason reason = {};
	long ret;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	request.policy[sizeof(request.policy) - 1] = 0;
	if (request.params_len > EKIDEN_PARAMS_MAX || !request.topology_len ||
	    request.topology_len > EKIDEN_TOPOLOGY_MAX || !request.max_tasks || request.max_tasks > SZ_4M ||
	    request.arena_bytes < SZ_64K || request.arena_bytes > SZ_2G ||
	    request.tape_records > EKIDEN_TAPE_RECORDS_MAX ||
	    (request.tape_records && !is_power_of_2(request.tape_records)))
		return -EINVAL;
	mutex_lock(&control);
	ret = create(file, &request, &reason);
	mutex_unlock(&control);
	return give_reason(&reason, request.error, request.error_len, ret);
}

static long ioctl_hint(void __user *arg)
{
	struct ekiden_hint_request request;
	struct ekiden_outcome outcome = {};
	struct ekiden_event event = {};
	void *payload;
	long ret = 0;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	if (request.kind < EKIDEN_HINT || request.kind > EKIDEN_QUEUE_CLOSE || request.len > EKIDEN_HINT_MAX)
		return -EINVAL;
	payload = copy_in(request.bytes, request.len);
	if (IS_ERR(payload))
		return PTR_ERR(payload);
	event.kind = request.kind;
	event.args[0] = request.queue;
	mutex_lock(&control);
	if (running.now) {
		rcu_read_lock();
		preempt_disable();
		event.cpu = smp_processor_id();
		deliver(&event, &outcome, payload, request.len);
		carry_out(&outcome);
		preempt_enable();
		rcu_read_unlock();
	} else {
		ret = -ENODEV;
	}
	mutex_unlock(&control);
	kvfree(payload);
	if (!ret && outcome.status == EKIDEN_FAULT)
		ret = -EIO;
	request.taken = outcome.cpu >= 0;
	if (!ret && copy_to_user(arg, &request, sizeof(request)))
		ret = -EFAULT;
	return ret;
}

/* ---- another policy takes over ---- */

/* One upgrade at a time: a second one is refused and does not wait. */
static atomic_t upgrading = ATOMIC_INIT(0);

struct takeover {
	struct instance *to;
	void *successor;	/* already made; NULL for one that gets the old one's state */
	u32 what;		/* what the tape is told */
	struct ekiden_outcome outcome;
};

/* All other CPUs stand still. */
static s64 take_over(void *data)
{
	struct takeover *takeover = data;
	s64 ret;

	takeover->to->host.fault = (void (*)(const char *, size_t))fault;
	/* Counted whether it is recorded or not: what is recorded later is of this one. */
	running.tape.instance = ++instances;
	if (running.tape_runs) {
		run_tape(running.now, EKIDEN_TAPE_STOP);
		run_tape(takeover->to, takeover->what);
	}
	ret = guarded(ekiden_rs_swap, takeover->to->policy->table, &takeover->to->args, takeover->successor,
		      &takeover->outcome, 0);
	if (!ret)
		now_runs(takeover->to);
	if (takeover->successor)
		WRITE_ONCE(tenancy, tenancy + 1);
	return ret;
}

/* The tasks become known to a policy that has never heard of them, some at a time, while everything goes on. */
static int introduce_tasks(void)
{
	s64 next = 0;

	do {
		struct ekiden_outcome outcome = {};

		rcu_read_lock();
		local_irq_disable();
		next = guarded(ekiden_rs_introduce, next, &outcome, 0, 0, 0);
		if (next == LEFT)
			outcome.status = EKIDEN_FAULT;
		if (outcome.timer_ns)
			ekiden_do_arm_timer(smp_processor_id(), outcome.timer_ns);
		carry_out(&outcome);
		local_irq_enable();
		rcu_read_unlock();
		if (outcome.status == EKIDEN_FAULT)
			return -EIO;
		cond_resched();
	} while (next > 0);
	return 0;
}

static const struct policy *find_module_policy(const char *name)
{
	const struct policy *policy;

	list_for_each_entry(policy, &policies, node)
		if (!strcmp(module_name(policy->owner), name))
			return policy;
	return NULL;
}

/* Room for what a policy saves: so much, and so much for each task. */
#define SAVED_LEN SZ_64K
#define SAVED_TASK_LEN 64

/*
 * `made`, which does not run yet, goes on with what the one that runs saves for it. That one is called as ever meanwhile, so
 * that no CPU but this one waits.
 */
static s64 convert(struct instance *next, void *made, struct reason *reason)
{
	static const char nothing[] = "its state has another layout, and the policy that runs saves nothing for such a version";
	static const char room[] = "its state has another layout, and there is no room for what the policy that runs saves";
	size_t len = SAVED_LEN + (size_t)next->args.max_tasks * SAVED_TASK_LEN;
	void *bytes = __vmalloc(len, GFP_KERNEL | __GFP_NOWARN);
	s64 ret;

	if (!bytes)
		return -ENOMEM;
	preempt_disable();
	local_irq_disable();
	ret = guarded(ekiden_rs_save, smp_processor_id(), bytes, len, 0, 0);
	local_irq_enable();
	if (ret == LEFT) {
		ret = -EIO;
	} else if (ret > 0) {
		ret = guarded(next->policy->table->restore, made, &next->args, bytes, ret, 0);
		ret = ret == LEFT ? LEFT : (u8)ret ? 0 : -EINVAL;
	} else {
		set_reason(reason, ret ? room : nothing, (ret ? sizeof(room) : sizeof(nothing)) - 1);
		ret = -ENODATA;
	}
	preempt_enable();
	vfree(bytes);
	return ret;
}

/* How the tasks come over from the policy that runs; 0 with a reason if they cannot. */
static u32 way_over(const struct ekiden_policy_table *to, const struct ekiden_upgrade_request *request,
		    struct reason *reason)
{
	static const char same_module[] = "one module runs one instance, and this one does; load another copy of it";
	const struct ekiden_policy_table *from = running.now->policy->table;
	bool start_over = request->flags & EKIDEN_UPGRADE_START_OVER;

	if (to == from && start_over) {
		set_reason(reason, same_module, sizeof(same_module) - 1);
		return 0;
	}
	if (to == from)
		return EKIDEN_MOVED_BY_POINTER;
	if (start_over || strncmp(to->name, from->name, EKIDEN_NAME_LEN))
		return EKIDEN_MOVED_STARTED_OVER;
	if (to->layout && to->layout == from->layout)
		return EKIDEN_MOVED_BY_POINTER;
	return EKIDEN_MOVED_CONVERTED;
}

/* Everything that can fail does so before the CPUs are stopped. */
static long upgrade(struct ekiden_upgrade_request *request, struct reason *reason)
{
	static const char another[] = "the module has another policy";
	struct instance *old = running.now, *next;
	struct ekiden_create_request wanted;
	struct takeover takeover = {};
	const struct policy *policy;
	s64 ret, swapped = LEFT;

	if (!old || !READ_ONCE(running.attached))
		return -ENODEV;
	/* What a dead instance would hand over is worth nothing. */
	if (smp_load_acquire(&fault_len))
		return -EIO;
	policy = request->module[0] ? find_module_policy(request->module) : old->policy;
	if (!policy)
		return -ENOENT;
	if (request->policy[0] && strncmp(request->policy, policy->table->name, EKIDEN_NAME_LEN)) {
		set_reason(reason, another, sizeof(another) - 1);
		return -EINVAL;
	}
	request->moved = way_over(policy->table, request, reason);
	if (!request->moved)
		return -EINVAL;
	wanted = (struct ekiden_create_request) {
		.params = request->params,
		.params_len = request->params_len,
		.topology_len = old->args.topology_len,
		.max_tasks = old->args.max_tasks,
		.arena_bytes = request->arena_bytes ?: old->args.arena_len,
	};
	if (request->moved == EKIDEN_MOVED_BY_POINTER)
		/* Only to look at the parameters. */
		wanted.arena_bytes = SZ_64K;
	next = new_instance(policy, &wanted, old);
	if (IS_ERR(next))
		return PTR_ERR(next);
	if (request->moved == EKIDEN_MOVED_BY_POINTER && !request->params_len) {
		kvfree(next->params);
		next->params = kvmemdup(old->params, old->args.params_len ?: 1, GFP_KERNEL);
		if (!next->params) {
			free_instance(next);
			return -ENOMEM;
		}
		next->args.params = next->params;
		next->args.params_len = old->args.params_len;
	}
	preempt_disable();
	if (request->moved != EKIDEN_MOVED_BY_POINTER) {
		takeover.successor = (void *)guarded(policy->table->create, &next->args, 0, 0, 0, 0);
		ret = (s64)takeover.successor == LEFT ? LEFT : takeover.successor ? 0 : -EINVAL;
	} else if (policy != old->policy || request->params_len) {
		/* In the module that runs, its own memory serves: nobody else may come in between. */
		if (policy == old->policy)
			next->args.arena = NULL;
		local_irq_disable();
		ret = guarded(policy->table->check, &next->args, 0, 0, 0, 0);
		local_irq_enable();
		ret = ret == LEFT ? LEFT : (u8)ret ? 0 : -EINVAL;
	} else {
		ret = 0;
	}
	preempt_enable();
	if (!ret && request->moved == EKIDEN_MOVED_CONVERTED)
		ret = convert(next, takeover.successor, reason);
	if (ret == LEFT || ret == -EINVAL) {
		ret = refused(&next->args, ret);
		set_reason(reason, next->args.error, next->args.error_len);
	}
	if (ret) {
		free_instance(next);
		return ret;
	}
	if (request->moved == EKIDEN_MOVED_BY_POINTER) {
		next->args.arena = old->args.arena;
		next->args.arena_len = old->args.arena_len;
	}
	takeover.to = next;
	/* What a version saves of itself is not on the tape: nobody can replay it from there. */
	takeover.what = request->moved == EKIDEN_MOVED_BY_POINTER ? EKIDEN_TAPE_HAND_OVER :
			request->moved == EKIDEN_MOVED_CONVERTED  ? EKIDEN_TAPE_GO_ON :
								    EKIDEN_TAPE_BEGIN;
	request->tasks = ekiden_rs_task_count();
	ret = ekiden_stop_cpus(take_over, &takeover, &swapped, &request->wait_ns);
	if (ret) {
		free_instance(next);
		return ret;
	}
	running.upgrades++;
	running.wait_ns = request->wait_ns;
	running.wait_ns_max = max(running.wait_ns_max, running.wait_ns);
	if (swapped) {
		/* It panicked on the way: the next operation tells the kernel, and nothing is freed until it has let go. */
		running.fallen = next;
		takeover.outcome.status = EKIDEN_FAULT;
	}
	rcu_read_lock();
	preempt_disable();
	carry_out(&takeover.outcome);
	preempt_enable();
	rcu_read_unlock();
	if (swapped)
		return -EIO;
	if (request->moved == EKIDEN_MOVED_BY_POINTER)
		swap(old->arena, next->arena);
	else
		ret = introduce_tasks();
	free_instance(old);
	return ret;
}

static long ioctl_upgrade(void __user *arg)
{
	struct ekiden_upgrade_request request;
	struct reason reason = {};
	long ret;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	request.module[sizeof(request.module) - 1] = 0;
	request.policy[sizeof(request.policy) - 1] = 0;
	if (request.params_len > EKIDEN_PARAMS_MAX || request.flags & ~EKIDEN_UPGRADE_START_OVER ||
	    (request.arena_bytes && (request.arena_bytes < SZ_64K || request.arena_bytes > SZ_2G)))
		return -EINVAL;
	if (atomic_xchg(&upgrading, 1))
		return -EALREADY;
	/* In this order: sched_ext holds CPUs where they are when it asks us to attach. */
	cpus_read_lock();
	mutex_lock(&control);
	ret = upgrade(&request, &reason);
	mutex_unlock(&control);
	cpus_read_unlock();
	atomic_set(&upgrading, 0);
	ret = give_reason(&reason, request.error, request.error_len, ret);
	if (copy_to_user(arg, &request, sizeof(request)))
		ret = -EFAULT;
	return ret;
}

/* All other CPUs stand still. */
static s64 switch_tape(void *on)
{
	if (running.tape_runs != !!on)
		run_tape(running.now, on ? EKIDEN_TAPE_GO_ON : EKIDEN_TAPE_STOP);
	return 0;
}

static long ioctl_tape(unsigned long on)
{
	long ret = -ENODEV;
	u64 wait_ns;
	s64 done;

	if (atomic_xchg(&upgrading, 1))
		return -EALREADY;
	cpus_read_lock();
	mutex_lock(&control);
	if (running.now && running.tape.base && !smp_load_acquire(&fault_len))
		ret = ekiden_stop_cpus(switch_tape, (void *)on, &done, &wait_ns);
	mutex_unlock(&control);
	cpus_read_unlock();
	atomic_set(&upgrading, 0);
	return ret;
}

static int control_mmap(struct file *file, struct vm_area_struct *vma)
{
	int ret = -ENODEV;

	/* What tasks do is not for everybody, and nobody but the policy writes. */
	if (!(file->f_mode & FMODE_WRITE))
		return -EPERM;
	if (vma->vm_flags & VM_WRITE)
		return -EACCES;
	vm_flags_clear(vma, VM_MAYWRITE);
	mutex_lock(&control);
	if (running.tape.base)
		ret = remap_vmalloc_range(vma, running.tape.base, vma->vm_pgoff);
	mutex_unlock(&control);
	return ret;
}

static long control_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	if (!(file->f_mode & FMODE_WRITE))
		return -EPERM;
	switch (command) {
	case EKIDEN_IOC_CREATE:
		return ioctl_create(file, (void __user *)arg);
	case EKIDEN_IOC_HINT:
		return ioctl_hint((void __user *)arg);
	case EKIDEN_IOC_UPGRADE:
		return ioctl_upgrade((void __user *)arg);
	case EKIDEN_IOC_TAPE:
		return ioctl_tape(arg);
	}
	return -ENOTTY;
}

/* The loader is gone, by whatever way: without a controller the policy only lives until the kernel lets go of it. */
static int control_release(struct inode *inode, struct file *file)
{
	mutex_lock(&control);
	if (running.controller == file) {
		running.controller = NULL;
		if (!READ_ONCE(running.attached))
			free_running();
	}
	mutex_unlock(&control);
	return 0;
}

/* ---- status ---- */

#define STATUS_LEN 4096

/* A text goes into JSON: quotes and backslashes in it would break that. */
static int put_text(char *to, size_t size, const char *key, const char *text, size_t len)
{
	int at = scnprintf(to, size, ",\"%s\":\"", key);
	size_t i;

	for (i = 0; i < len && at + 4 < size; i++) {
		if (text[i] == '"' || text[i] == '\\')
			to[at++] = '\\';
		to[at++] = text[i] < ' ' ? ' ' : text[i];
	}
	return at + scnprintf(to + at, size - at, "\"");
}

static int put_policies(char *to, size_t size)
{
	const struct policy *policy;
	const char *comma = "";
	int at = scnprintf(to, size, ",\"loaded\":[");

	list_for_each_entry(policy, &policies, node) {
		at += scnprintf(to + at, size - at, "%s\"%.32s\"", comma, policy->table->name);
		comma = ",";
	}
	return at + scnprintf(to + at, size - at, "]");
}

static ssize_t control_read(struct file *file, char __user *to, size_t count, loff_t *offset)
{
	char *text = kvzalloc(STATUS_LEN, GFP_KERNEL);
	ssize_t ret;
	s64 len;
	int at;

	if (!text)
		return -ENOMEM;
	mutex_lock(&control);
	at = scnprintf(text, STATUS_LEN, "{\"abi\":%u,\"policy\":", EKIDEN_ABI_VERSION);
	if (running.now) {
		const struct ekiden_policy_table *table = running.now->policy->table;

		at += scnprintf(text + at, STATUS_LEN - at, "\"%.32s\",\"attached\":%s,\"calls\":%llu", table->name,
				READ_ONCE(running.attached) ? "true" : "false", table->calls);
		at += scnprintf(text + at, STATUS_LEN - at,
				",\"module\":\"%s\",\"upgrades\":%llu,\"upgrade_wait_ns\":%llu,\"upgrade_wait_ns_max\":%llu",
				module_name(running.now->policy->owner), running.upgrades, running.wait_ns,
				running.wait_ns_max);
		at += scnprintf(text + at, STATUS_LEN - at,
				",\"instance\":%u,\"ticks_khz\":%u,\"tape_records\":%zu,\"tape_cpus\":%u,\"tape_runs\":%s",
				running.tape.instance, running.tape.ticks_khz, running.tape.records, running.tape.cpus,
				running.tape_runs ? "true" : "false");
		at += put_text(text + at, STATUS_LEN - at, "params", running.now->params,
			       min_t(size_t, running.now->args.params_len, STATUS_LEN / 4));
		if (!smp_load_acquire(&fault_len)) {
			preempt_disable();
			len = guarded(ekiden_rs_status, text + at, STATUS_LEN - 1024 - at, 0, 0, 0);
			preempt_enable();
			at += len > 0 ? len : 0;
		}
	} else {
		at += scnprintf(text + at, STATUS_LEN - at, "null");
	}
	if (smp_load_acquire(&fault_len))
		at += put_text(text + at, STATUS_LEN - at, "fault", fault_text, fault_len);
	at += put_policies(text + at, STATUS_LEN - at);
	at += scnprintf(text + at, STATUS_LEN - at, "}\n");
	mutex_unlock(&control);
	ret = simple_read_from_buffer(to, count, offset, text, at);
	kvfree(text);
	return ret;
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE,
	.read = control_read,
	.unlocked_ioctl = control_ioctl,
	.mmap = control_mmap,
	.release = control_release,
};

static struct miscdevice control_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ekiden",
	.mode = 0644,
	.fops = &control_fops,
};

static int __init ekiden_init(void)
{
	int ret = ekiden_register_kfuncs();

	set_up_timers();
	return ret ?: misc_register(&control_device);
}

static void __exit ekiden_exit(void)
{
	misc_deregister(&control_device);
	flush_work(&reap_work);
	ekiden_stop_ended();
}

module_init(ekiden_init);
module_exit(ekiden_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Runs scheduling policies written in safe Rust");
MODULE_INFO(ekiden_abi, __stringify(EKIDEN_ABI_VERSION));
