// SPDX-License-Identifier: GPL-2.0-only
/*
 * ekiden.ko: the engine (Rust) behind /dev/ekiden and a handful of kfuncs. This half owns what only C can: memory,
 * module references, the device, the guarded entry. It takes no scheduling decision.
 */
#include <linux/bpf.h>
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
#include <linux/stop_machine.h>
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
s64 ekiden_rs_hand_over(struct ekiden_create *args);
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

/* The one policy that runs. */
static struct {
	const struct policy *policy;
	struct file *controller;	/* open as long as somebody answers for it */
	bool attached;			/* between ops.init and ops.exit */
	void *engine_arena;
	void *policy_arena;
	size_t policy_arena_len;
	void *tape;
	size_t tape_len;
	bool tape_runs;
	struct ekiden_create args;
	u32 *topology;
	char *params;
} running;

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
	if (running.policy && running.controller && !running.attached) {
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
};

static DEFINE_PER_CPU(struct ekiden_timer, timers);

static enum hrtimer_restart timer_expired(struct hrtimer *timer)
{
	struct ekiden_timer *own = container_of(timer, struct ekiden_timer, timer);
	struct ekiden_event event = { .kind = EKIDEN_TIMER, .cpu = own->cpu };
	struct ekiden_outcome outcome = {};

	rcu_read_lock();
	deliver(&event, &outcome, NULL, 0);
	/* After a fault, the next operation on any CPU tells the kernel. */
	ekiden_timer_fired(outcome.status == EKIDEN_FAULT ? ~0ULL : outcome.kicks);
	rcu_read_unlock();
	if (outcome.status == EKIDEN_FAULT || !outcome.timer_ns)
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ns_to_ktime(outcome.timer_ns));
	return HRTIMER_RESTART;
}

/* The timer runs on the CPU that arms it, wherever the call that it was for belongs. */
void ekiden_do_arm_timer(u32 cpu, u64 delay_ns)
{
	if (cpu < nr_cpu_ids)
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

static const struct ekiden_host_table host_table = {
	.now_ns = ekiden_c_now_ns,
	.may_run = may_run,
	.allowed_cpus = allowed_cpus,
	.idle_cpus = ekiden_rs_idle_cpus,
	.fault = (void (*)(const char *, size_t))fault,
};

/* ---- policy modules ---- */

int ekiden_register_policy(const struct ekiden_policy_table *table, struct module *owner)
{
	struct policy *policy, *other;
	int ret = 0;

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
	list_for_each_entry(other, &policies, node)
		if (!strncmp(other->table->name, table->name, EKIDEN_NAME_LEN))
			ret = -EEXIST;
	if (!ret)
		list_add_tail(&policy->node, &policies);
	mutex_unlock(&control);
	if (ret)
		kfree(policy);
	return ret;
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

static void free_running(void)
{
	cancel_timers();
	ekiden_rs_forget();
	vfree(running.engine_arena);
	vfree(running.policy_arena);
	/* Whoever has it mapped keeps the pages. */
	vfree(running.tape);
	kvfree(running.topology);
	kvfree(running.params);
	if (running.policy)
		module_put(running.policy->owner);
	memset(&running, 0, sizeof(running));
}

/* Nobody answers for the policy any more and the kernel does not call it: its memory can go. */
static void reap(struct work_struct *work)
{
	mutex_lock(&control);
	if (running.policy && !running.controller && !READ_ONCE(running.attached))
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

/* How fast the counter goes that the Rust half reads (kernel/policy/src/here_<arch>.rs); 0 if it is not to be used. */
static u32 ticks_khz(void)
{
#ifdef CONFIG_X86_64
	if (!check_tsc_unstable())
		return tsc_khz;
#endif
	return 0;
}

static size_t tape_len(u64 records)
{
	return records ? nr_cpu_ids * (EKIDEN_TAPE_PAGE + records * 64) : 0;
}

/* The engine's own memory: the task table, and a little for everything else. */
static size_t engine_arena_len(u32 max_tasks)
{
	return (size_t)max_tasks * 128 + nr_cpu_ids * 256 + SZ_1M;
}

static long create(struct file *file, const struct ekiden_create_request *request, struct ekiden_create *args)
{
	const struct policy *policy = find_policy(request->policy);
	size_t engine_len = engine_arena_len(request->max_tasks);
	s64 ret;

	if (running.policy)
		return -EBUSY;
	if (!policy)
		return -ENOENT;
	if (!try_module_get(policy->owner))
		return -ENOENT;
	running.policy = policy;
	running.params = copy_in(request->params, request->params_len);
	if (IS_ERR(running.params)) {
		ret = PTR_ERR(running.params);
		running.params = NULL;
		goto out;
	}
	running.topology = copy_in(request->topology, request->topology_len * sizeof(u32));
	if (IS_ERR(running.topology)) {
		ret = PTR_ERR(running.topology);
		running.topology = NULL;
		goto out;
	}
	ret = -ENOMEM;
	running.policy_arena_len = request->arena_bytes;
	running.engine_arena = __vmalloc(engine_len, GFP_KERNEL | __GFP_NOWARN | __GFP_ZERO);
	running.policy_arena = __vmalloc(request->arena_bytes, GFP_KERNEL | __GFP_NOWARN | __GFP_ZERO);
	running.tape_len = PAGE_ALIGN(tape_len(request->tape_records));
	if (running.tape_len)
		running.tape = vmalloc_user(running.tape_len);
	if (!running.engine_arena || !running.policy_arena || (running.tape_len && !running.tape))
		goto out;
	running.tape_runs = running.tape;
	*args = (struct ekiden_create) {
		.arena = running.policy_arena,
		.arena_len = request->arena_bytes,
		.topology = running.topology,
		.topology_len = request->topology_len,
		.params = running.params,
		.params_len = request->params_len,
		.max_tasks = request->max_tasks,
		.host = &host_table,
		.tape = running.tape,
		.tape_records = request->tape_records,
		.tape_cpus = nr_cpu_ids,
		.instance = ++instances,
		.ticks_khz = ticks_khz(),
	};
	fault_len = 0;
	atomic_set(&fault_taken, 0);
	preempt_disable();
	ret = guarded(ekiden_rs_create, policy->table, args, running.engine_arena, engine_len, nr_cpu_ids);
	preempt_enable();
	if (ret == LEFT) {
		args->error_len = ekiden_do_fault_text(args->error, sizeof(args->error));
		ret = -EINVAL;
	}
	running.args = *args;
	if (!ret)
		running.controller = file;
out:
	if (ret)
		free_running();
	return ret;
}

static long ioctl_create(struct file *file, void __user *arg)
{
	struct ekiden_create_request request;
	struct ekiden_create *args;
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
	args = kvzalloc(sizeof(*args), GFP_KERNEL);
	if (!args)
		return -ENOMEM;
	mutex_lock(&control);
	ret = create(file, &request, args);
	mutex_unlock(&control);
	if (args->error_len &&
	    copy_to_user(u64_to_user_ptr(request.error), args->error, min(args->error_len, request.error_len)))
		ret = -EFAULT;
	kvfree(args);
	return ret;
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
	if (running.policy) {
		rcu_read_lock();
		preempt_disable();
		event.cpu = smp_processor_id();
		deliver(&event, &outcome, payload, request.len);
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

/* All CPUs are here with interrupts off, so no event is under way. */
static int renew_stopped(void *unused)
{
	running.args.error_len = 0;
	running.args.instance = ++instances;
	return guarded(ekiden_rs_hand_over, &running.args, 0, 0, 0, 0);
}

static long ioctl_renew(void)
{
	long ret = -ENODEV;

	mutex_lock(&control);
	if (running.policy && smp_load_acquire(&fault_len)) {
		/* What a dead instance would hand over is worth nothing. */
		ret = -EIO;
	} else if (running.policy) {
		ret = stop_machine(renew_stopped, NULL, NULL);
		if (ret == LEFT)
			ret = -EIO;
	}
	mutex_unlock(&control);
	return ret;
}

static int switch_tape_stopped(void *on)
{
	running.policy->table->record(on);
	running.tape_runs = on;
	return 0;
}

static long ioctl_tape(unsigned long on)
{
	long ret = -ENODEV;

	mutex_lock(&control);
	if (running.policy && running.tape)
		ret = stop_machine(switch_tape_stopped, (void *)on, NULL);
	mutex_unlock(&control);
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
	if (running.tape)
		ret = remap_vmalloc_range(vma, running.tape, vma->vm_pgoff);
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
	case EKIDEN_IOC_RENEW:
		return ioctl_renew();
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

/* The text of a fault goes into JSON: quotes and backslashes in it would break that. */
static int put_text(char *to, size_t size, const char *text, size_t len)
{
	int at = scnprintf(to, size, ",\"fault\":\"");
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
	if (running.policy) {
		at += scnprintf(text + at, STATUS_LEN - at, "\"%.32s\",\"attached\":%s,\"calls\":%llu",
				running.policy->table->name, READ_ONCE(running.attached) ? "true" : "false",
				running.policy->table->calls);
		at += scnprintf(text + at, STATUS_LEN - at,
				",\"instance\":%u,\"ticks_khz\":%u,\"tape_records\":%zu,\"tape_cpus\":%u,\"tape_runs\":%s",
				running.args.instance, running.args.ticks_khz, running.args.tape_records, running.args.tape_cpus,
				running.tape_runs ? "true" : "false");
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
		at += put_text(text + at, STATUS_LEN - at, fault_text, fault_len);
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
}

module_init(ekiden_init);
module_exit(ekiden_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Runs scheduling policies written in safe Rust");
MODULE_INFO(ekiden_abi, __stringify(EKIDEN_ABI_VERSION));
