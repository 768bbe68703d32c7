// SPDX-License-Identifier: GPL-2.0-only
/*
 * ekiden.ko: the engine (Rust) behind /dev/ekiden and a handful of kfuncs. The C half owns what only C can: memory, module
 * references, the device, the guarded entry. It takes no scheduling decision. This file is the device.
 */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "host.h"

static long give_reason(const struct ekiden_text *reason, u64 to, u32 room, long ret)
{
	return copy_to_user(u64_to_user_ptr(to), reason->bytes, min(reason->len, room)) ? -EFAULT : ret;
}

static long ioctl_create(struct file *file, void __user *arg)
{
	struct ekiden_create_request request;
	struct ekiden_text reason = {};
	long ret;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	request.policy[sizeof(request.policy) - 1] = 0;
	if (request.params_len > EKIDEN_PARAMS_MAX || !request.topology_len || request.topology_len > EKIDEN_TOPOLOGY_MAX ||
	    !request.max_tasks || request.max_tasks > SZ_4M || request.arena_bytes < SZ_64K || request.arena_bytes > SZ_2G ||
	    request.flags & ~(EKIDEN_CREATE_JOIN | EKIDEN_CREATE_DEFAULT | EKIDEN_CREATE_OPEN | EKIDEN_CREATE_GROUP) ||
	    request.saved_len > ekiden_saved_most(request.max_tasks) || (request.saved_len && request.flags & EKIDEN_CREATE_JOIN) ||
	    (request.flags & EKIDEN_CREATE_GROUP && !gid_valid(make_kgid(current_user_ns(), request.group))) ||
	    request.call_log_records > EKIDEN_CALL_LOG_RECORDS_MAX ||
	    (request.call_log_records && !is_power_of_2(request.call_log_records)))
		return -EINVAL;
	mutex_lock(&ekiden_control);
	ret = ekiden_create_policy(file, &request, &reason);
	mutex_unlock(&ekiden_control);
	ret = give_reason(&reason, request.error, request.error_len, ret);
	if (!ret && copy_to_user(arg, &request, sizeof(request)))
		ret = -EFAULT;
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
	if (request.kind < EKIDEN_HINT || request.kind > EKIDEN_QUEUE_CLOSE || request.len > EKIDEN_HINT_MAX ||
	    request.policy_slot > EKIDEN_POLICY_SLOTS)
		return -EINVAL;
	payload = ekiden_copy_in(request.bytes, request.len);
	if (IS_ERR(payload))
		return PTR_ERR(payload);
	event.kind = request.kind;
	event.args[0] = request.queue;
	event.flags = request.policy_slot;
	mutex_lock(&ekiden_control);
	if (ekiden_running.nr) {
		rcu_read_lock();
		preempt_disable();
		event.cpu = smp_processor_id();
		ekiden_deliver(&event, &outcome, payload, request.len);
		ekiden_carry_out(&outcome);
		preempt_enable();
		rcu_read_unlock();
	} else {
		ret = -ENODEV;
	}
	mutex_unlock(&ekiden_control);
	kvfree(payload);
	if (!ret && outcome.status == EKIDEN_FAULT)
		ret = -EIO;
	request.taken = outcome.cpu >= 0;
	if (!ret && copy_to_user(arg, &request, sizeof(request)))
		ret = -EFAULT;
	return ret;
}

static long ioctl_upgrade(void __user *arg)
{
	struct ekiden_upgrade_request request;
	struct ekiden_text reason = {};
	long ret;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	request.module[sizeof(request.module) - 1] = 0;
	request.policy[sizeof(request.policy) - 1] = 0;
	if (request.params_len > EKIDEN_PARAMS_MAX || request.flags & ~EKIDEN_UPGRADE_START_OVER ||
	    (request.arena_bytes && (request.arena_bytes < SZ_64K || request.arena_bytes > SZ_2G)))
		return -EINVAL;
	/* The previous holder may wait for a CPU that has lost its processor. */
	if (mutex_lock_killable(&ekiden_control))
		return -EINTR;
	ret = ekiden_upgrade(&request, &reason);
	mutex_unlock(&ekiden_control);
	ret = give_reason(&reason, request.error, request.error_len, ret);
	if (copy_to_user(arg, &request, sizeof(request)))
		ret = -EFAULT;
	return ret;
}

static long ioctl_save(void __user *arg)
{
	struct ekiden_policy_slot *policy_slot;
	struct ekiden_save_request request;
	s64 ret = -ENODEV;
	void *bytes;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	if (!request.len || request.len > ekiden_saved_most(SZ_4M) || request.policy_slot > EKIDEN_POLICY_SLOTS)
		return -EINVAL;
	bytes = __vmalloc(request.len, GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
	if (!bytes)
		return -ENOMEM;
	if (mutex_lock_killable(&ekiden_control)) {
		vfree(bytes);
		return -EINTR;
	}
	if (ekiden_running.nr) {
		policy_slot = ekiden_policy_slot_of(request.policy_slot ? request.policy_slot - 1 : ekiden_default_policy_slot());
		if (policy_slot && policy_slot->now)
			ret = ekiden_is_alive(policy_slot) ? ekiden_save(policy_slot, bytes, request.len) : -EIO;
	}
	mutex_unlock(&ekiden_control);
	if (ret > 0) {
		request.len = ret;
		ret = copy_to_user(u64_to_user_ptr(request.bytes), bytes, request.len) ||
				      copy_to_user(arg, &request, sizeof(request))
			      ? -EFAULT
			      : 0;
	}
	vfree(bytes);
	return ret;
}

static long ioctl_call_log(unsigned long arg)
{
	long ret;

	if (mutex_lock_killable(&ekiden_control))
		return -EINTR;
	ret = ekiden_run_call_log_of(arg >> 1, arg & 1);
	mutex_unlock(&ekiden_control);
	return ret;
}

static long ioctl_checks(unsigned long arg)
{
	long ret;

	mutex_lock(&ekiden_control);
	ret = ekiden_running.nr && !ekiden_is_broken() ? ekiden_rs_check(arg >> 2, arg & 3) : -ENODEV;
	mutex_unlock(&ekiden_control);
	return ret;
}

static long ioctl_order(void __user *arg)
{
	struct ekiden_order_request request;
	long ret;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	if (!request.len || request.len > EKIDEN_POLICY_SLOTS)
		return -EINVAL;
	mutex_lock(&ekiden_control);
	ret = ekiden_reorder(&request);
	mutex_unlock(&ekiden_control);
	return ret;
}

static long ioctl_share(void __user *arg)
{
	struct ekiden_share_request request;
	u64 *cpus;
	long ret;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	if (request.cpus_len > EKIDEN_SHARE_WORDS_MAX || request.flags & ~EKIDEN_SHARE_STRICT)
		return -EINVAL;
	cpus = vmemdup_user(u64_to_user_ptr(request.cpus), request.cpus_len * sizeof(*cpus));
	if (IS_ERR(cpus))
		return PTR_ERR(cpus);
	mutex_lock(&ekiden_control);
	ret = ekiden_set_share(&request, cpus);
	mutex_unlock(&ekiden_control);
	kvfree(cpus);
	return ret;
}

/* ---- who may do what: SECURITY.md has the table ---- */

/* As for sched_setattr(2): for the user's own tasks, and with CAP_SYS_NICE for others. */
static bool may_choose_for(struct task_struct *p)
{
	const struct cred *cred;
	bool is_own;

	rcu_read_lock();
	cred = __task_cred(p);
	is_own = uid_eq(current_euid(), cred->euid) || uid_eq(current_euid(), cred->uid);
	rcu_read_unlock();
	return is_own || capable(CAP_SYS_NICE);
}

/* A policy may be asked before others, or have CPUs or a share of its own: that raises the priority of those that are in it. */
bool ekiden_may_enter(const struct ekiden_policy_slot *policy_slot)
{
	return ekiden_is_default(policy_slot) || policy_slot->access == EKIDEN_CREATE_OPEN ||
	       (policy_slot->access == EKIDEN_CREATE_GROUP && in_egroup_p(policy_slot->group)) || capable(CAP_SYS_NICE);
}

/* The root user of a container that was given the device may open it for writing, without CAP_SYS_ADMIN on this machine. */
static bool may_control(const struct file *file)
{
	return file->f_mode & FMODE_WRITE && capable(CAP_SYS_ADMIN);
}

/* ---- requests for one's own tasks ---- */

/* What can be set for a task is up to the policy in the policy slot of this number. */
static long check_settings(struct ekiden_policy_slot *policy_slot, struct ekiden_settings *settings)
{
	const struct ekiden_policy_table *table = policy_slot->now->policy->table;
	u64 start_ns;
	s64 ret;

	if (!table->params_declared && !settings->text_len)
		return 0;
	/* It may allocate, which scheduling calls do, too. */
	preempt_disable();
	local_irq_disable();
	start_ns = ekiden_times_begin();
	ret = ekiden_run_guarded(table->settings, settings, 0, 0, 0, 0);
	/* With a reason in the settings, a panic is a refusal. */
	if (ret == LEFT && settings->error_len)
		ret = false;
	else if (ret == LEFT)
		ekiden_run_guarded(ekiden_rs_faulted, policy_slot - ekiden_running.policy_slots, 0, 0, 0, 0);
	ekiden_times_end(EKIDEN_TIME_SETTINGS, start_ns);
	local_irq_enable();
	preempt_enable();
	return ret == LEFT ? -EIO : (u8)ret ? 0 : -EINVAL;
}

static void set_params(u64 task, const struct ekiden_task_params *params)
{
	struct ekiden_event event = { .kind = EKIDEN_TASK_PARAMS, .task = task };
	struct ekiden_outcome outcome = {};

	rcu_read_lock();
	preempt_disable();
	event.cpu = smp_processor_id();
	ekiden_deliver(&event, &outcome, params, sizeof(*params));
	ekiden_carry_out(&outcome);
	preempt_enable();
	rcu_read_unlock();
}

static long choose(u64 task, const struct ekiden_choose_request *request, struct ekiden_settings *settings)
{
	struct ekiden_policy_slot *policy_slot =
		ekiden_policy_slot_of(request->policy_slot ? request->policy_slot - 1 : ekiden_default_policy_slot());
	long ret;

	if (!policy_slot || !ekiden_is_alive(policy_slot))
		return -ENOENT;
	if (!ekiden_may_enter(policy_slot))
		return -EACCES;
	ret = check_settings(policy_slot, settings);
	if (!ret)
		ret = ekiden_rs_choose(task, request->policy_slot, request->flags & EKIDEN_CHOOSE_INHERIT,
				       ns_capable_noaudit(&init_user_ns, CAP_SYS_NICE));
	if (!ret && settings->params.declared)
		set_params(task, &settings->params);
	return ret;
}

static long ioctl_choose(void __user *arg)
{
	struct ekiden_settings settings = {};

	struct ekiden_choose_request request;
	struct task_struct *p;
	struct pid *pid;
	long ret = -ESRCH;
	u64 task;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	if (request.policy_slot > EKIDEN_POLICY_SLOTS || request.flags & ~EKIDEN_CHOOSE_INHERIT ||
	    request.params_len > EKIDEN_PARAMS_MAX)
		return -EINVAL;
	settings.text = ekiden_copy_in(request.params, request.params_len);
	if (IS_ERR(settings.text))
		return PTR_ERR(settings.text);
	settings.text_len = request.params_len;
	pid = request.tid ? find_get_pid(request.tid) : get_pid(task_pid(current));
	p = get_pid_task(pid, PIDTYPE_PID);
	put_pid(pid);
	if (!p)
		goto out;
	mutex_lock(&ekiden_control);
	task = READ_ONCE(p->scx.dsq_vtime);
	if (!ekiden_running.nr)
		ret = -ENODEV;
	else if (!may_choose_for(p))
		ret = -EPERM;
	else if (task && ekiden_rs_host_task(task) == p)
		ret = choose(task, &request, &settings);
	mutex_unlock(&ekiden_control);
	put_task_struct(p);
out:
	kvfree(settings.text);
	if (ret == -EINVAL &&
	    copy_to_user(u64_to_user_ptr(request.error), settings.error, min(settings.error_len, request.error_len)))
		ret = -EFAULT;
	return ret;
}

static long ioctl_open(void __user *arg)
{
	struct ekiden_open_request request;
	struct ekiden_text reason = {};
	long ret;

	if (copy_from_user(&request, arg, sizeof(request)))
		return -EFAULT;
	ret = ekiden_open_queue(&request, arg, &reason);
	return reason.len ? give_reason(&reason, request.error, request.error_len, ret) : ret;
}

static int control_mmap(struct file *file, struct vm_area_struct *vma)
{
	unsigned long pages = EKIDEN_CALL_LOG_STRIDE >> PAGE_SHIFT;
	struct ekiden_policy_slot *policy_slot;
	int ret = -ENODEV;

	/* What tasks do is not for every user, and only the policy writes. */
	if (!may_control(file))
		return -EPERM;
	if (vma->vm_flags & VM_WRITE)
		return -EACCES;
	vm_flags_clear(vma, VM_MAYWRITE);
	mutex_lock(&ekiden_control);
	policy_slot = ekiden_policy_slot_of(vma->vm_pgoff / pages);
	if (policy_slot && policy_slot->call_log.base)
		ret = remap_vmalloc_range(vma, policy_slot->call_log.base, vma->vm_pgoff % pages);
	mutex_unlock(&ekiden_control);
	return ret;
}

static long control_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	/* For one's own tasks; it looks at permissions itself. */
	if (command == EKIDEN_IOC_CHOOSE)
		return ioctl_choose((void __user *)arg);
	if (command == EKIDEN_IOC_OPEN)
		return ioctl_open((void __user *)arg);
	if (!may_control(file))
		return -EPERM;
	switch (command) {
	case EKIDEN_IOC_CREATE:
		return ioctl_create(file, (void __user *)arg);
	case EKIDEN_IOC_HINT:
		return ioctl_hint((void __user *)arg);
	case EKIDEN_IOC_UPGRADE:
		return ioctl_upgrade((void __user *)arg);
	case EKIDEN_IOC_SAVE:
		return ioctl_save((void __user *)arg);
	case EKIDEN_IOC_CALL_LOG:
		return ioctl_call_log(arg);
	case EKIDEN_IOC_CHECKS:
		return ioctl_checks(arg);
	case EKIDEN_IOC_ORDER:
		return ioctl_order((void __user *)arg);
	case EKIDEN_IOC_SHARE:
		return ioctl_share((void __user *)arg);
	}
	return -ENOTTY;
}

static int control_release(struct inode *inode, struct file *file)
{
	ekiden_let_go(file);
	return single_release(inode, file);
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE,
	.open = ekiden_control_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.poll = ekiden_control_poll,
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
	int ret = ekiden_queues_begin();

	if (ret)
		return ret;
	ekiden_set_up_timers();
	ekiden_watch_suspends();
	ret = ekiden_register_kfuncs() ?: misc_register(&control_device);
	if (!ret && !proc_create_single("ekiden", 0444, NULL, ekiden_proc_show)) {
		misc_deregister(&control_device);
		ret = -ENOMEM;
	}
	if (ret) {
		ekiden_watch_no_suspends();
		ekiden_queues_ended();
	}
	return ret;
}

static void __exit ekiden_exit(void)
{
	ekiden_wait_until_unused(THIS_MODULE);
	remove_proc_entry("ekiden", NULL);
	misc_deregister(&control_device);
	ekiden_watch_no_suspends();
	ekiden_queues_ended();
	ekiden_calls_ended();
	ekiden_stop_ended();
	ekiden_status_ended();
}

module_init(ekiden_init);
module_exit(ekiden_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Runs scheduling policies written in safe Rust");
MODULE_INFO(ekiden_abi, __stringify(EKIDEN_ABI_VERSION));
