// SPDX-License-Identifier: GPL-2.0-only
/* Another policy takes over from one that runs, while tasks keep running. */
#include <linux/cpumask.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include "host.h"

struct takeover {
	struct ekiden_policy_slot *policy_slot;
	struct ekiden_instance *to;
	void *successor; /* already made; NULL for one that gets the old one's state */
	u32 what;	 /* what the call log is told */
	struct ekiden_outcome outcome;
};

/* All other CPUs stand still. */
static s64 take_over(void *data)
{
	struct takeover *takeover = data;
	struct ekiden_policy_slot *policy_slot = takeover->policy_slot;
	s64 ret;

	takeover->to->host.fault = ekiden_running_host.fault;
	/* Counted whether it is recorded or not: what is recorded later is of this one. */
	policy_slot->call_log.instance = ekiden_next_instance();
	takeover->to->number = policy_slot->call_log.instance;
	if (policy_slot->call_log_runs) {
		ekiden_run_call_log(policy_slot, policy_slot->now, EKIDEN_CALL_LOG_STOP);
		ekiden_run_call_log(policy_slot, takeover->to, takeover->what);
	}
	ret = ekiden_run_guarded(ekiden_rs_swap, policy_slot - ekiden_running.policy_slots, takeover->to->policy->table,
				 &takeover->to->args, takeover->successor, &takeover->outcome);
	if (ret == LEFT)
		ekiden_run_guarded(ekiden_rs_faulted, policy_slot - ekiden_running.policy_slots, 0, 0, 0, 0);
	if (!ret) {
		ekiden_queues_change_policy(policy_slot - ekiden_running.policy_slots, &policy_slot->now->policy->table->types,
					    &takeover->to->policy->table->types);
		ekiden_now_runs(policy_slot, takeover->to);
	}
	if (takeover->successor)
		ekiden_forget_timers();
	return ret;
}

/* Room for what a policy saves: so much, and so much for each task. */
#define SAVED_LEN SZ_64K
#define SAVED_TASK_LEN 64

size_t ekiden_saved_most(u32 max_tasks)
{
	return SAVED_LEN + (size_t)max_tasks * SAVED_TASK_LEN;
}

/*
 * What the policy that runs saves for an instance that does not have its memory: how much it is, or a negative error, of which ENODATA
 * says that it saves nothing. It is called as ever meanwhile, so that no CPU but this one waits.
 */
s64 ekiden_save(struct ekiden_policy_slot *policy_slot, void *bytes, size_t len)
{
	u64 number = policy_slot - ekiden_running.policy_slots, start_ns;
	s64 ret;

	preempt_disable();
	local_irq_disable();
	start_ns = ekiden_times_begin();
	ret = ekiden_run_guarded(ekiden_rs_save, number, smp_processor_id(), bytes, len, 0);
	if (ret == LEFT)
		ekiden_run_guarded(ekiden_rs_faulted, number, 0, 0, 0, 0);
	ekiden_times_end(EKIDEN_TIME_SAVE, start_ns);
	local_irq_enable();
	preempt_enable();
	if (ret == LEFT || WARN_ON_ONCE(ret > (s64)len))
		return -EIO;
	return ret > 0 ? ret : ret ? -ENOSPC : -ENODATA;
}

/* `next`, which is to be made, continues with what the one that runs saves for it. */
static s64 convert(struct ekiden_policy_slot *policy_slot, struct ekiden_instance *next, struct ekiden_text *reason)
{
	static const char nothing[] = "its state has another layout, and the policy that runs saves nothing for such a version";
	static const char room[] = "its state has another layout, and there is no room for what the policy that runs saves";
	size_t len = ekiden_saved_most(next->args.max_tasks);
	s64 ret;

	kvfree(next->saved);
	next->args.saved = next->saved = __vmalloc(len, GFP_KERNEL | __GFP_NOWARN);
	if (!next->saved)
		return -ENOMEM;
	ret = ekiden_save(policy_slot, next->saved, len);
	if (ret == -ENODATA)
		ekiden_set_text(reason, nothing, sizeof(nothing) - 1);
	else if (ret == -ENOSPC)
		ekiden_set_text(reason, room, sizeof(room) - 1);
	if (ret < 0)
		return ret == -ENOSPC ? -ENODATA : ret;
	next->args.saved_len = ret;
	return 0;
}

/* How the tasks come over from the policy that runs; 0 with a reason if they cannot. */
static u32 way_over(const struct ekiden_policy_table *from, const struct ekiden_policy_table *to,
		    const struct ekiden_upgrade_request *request, struct ekiden_text *reason)
{
	static const char same_module[] = "one module runs one instance, and this one does; load another copy of it";
	bool start_over = request->flags & EKIDEN_UPGRADE_START_OVER;

	if (to == from && start_over) {
		ekiden_set_text(reason, same_module, sizeof(same_module) - 1);
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
long ekiden_upgrade(struct ekiden_upgrade_request *request, struct ekiden_text *reason)
{
	static const char another[] = "the module has another policy";
	struct ekiden_policy_slot *policy_slot =
		ekiden_running.nr
			? ekiden_policy_slot_of(request->policy_slot ? request->policy_slot - 1 : ekiden_default_policy_slot())
			: NULL;
	struct ekiden_instance *old = policy_slot ? policy_slot->now : NULL, *next;
	struct ekiden_create_request wanted;
	struct takeover takeover = { .policy_slot = policy_slot };
	const struct ekiden_policy *policy;
	s64 ret, swapped = LEFT;
	u64 start_ns;

	if (!old || !READ_ONCE(ekiden_running.attached))
		return -ENODEV;
	/* What a dead instance would hand over is worth nothing. */
	if (!ekiden_is_alive(policy_slot))
		return -EIO;
	policy = request->module[0] ? ekiden_find_module_policy(request->module) : old->policy;
	if (!policy)
		return -ENOENT;
	if (policy != old->policy && ekiden_policy_runs(policy)) {
		ekiden_say(reason, "that module runs a policy already; load another copy of it");
		return -EINVAL;
	}
	if (request->policy[0] && strncmp(request->policy, policy->table->name, EKIDEN_NAME_LEN)) {
		ekiden_set_text(reason, another, sizeof(another) - 1);
		return -EINVAL;
	}
	request->moved = way_over(old->policy->table, policy->table, request, reason);
	if (!request->moved)
		return -EINVAL;
	wanted = (struct ekiden_create_request){
		.params = request->params,
		.params_len = request->params_len,
		.topology_len = old->args.topology_len,
		.max_tasks = old->args.max_tasks,
		.arena_bytes = request->arena_bytes ?: old->args.arena_len,
	};
	if (request->moved == EKIDEN_MOVED_BY_POINTER)
		/* Only to look at the parameters. */
		wanted.arena_bytes = SZ_64K;
	next = ekiden_new_instance(policy, &wanted, old);
	if (IS_ERR(next))
		return PTR_ERR(next);
	if (request->moved == EKIDEN_MOVED_BY_POINTER && !request->params_len) {
		kvfree(next->params);
		next->params = kvmemdup(old->params, old->args.params_len ?: 1, GFP_KERNEL);
		if (!next->params) {
			ekiden_free_instance(next);
			return -ENOMEM;
		}
		next->args.params = next->params;
		next->args.params_len = old->args.params_len;
	}
	ret = request->moved == EKIDEN_MOVED_CONVERTED ? convert(policy_slot, next, reason) : 0;
	if (ret) {
		ekiden_free_instance(next);
		return ret;
	}
	preempt_disable();
	if (request->moved != EKIDEN_MOVED_BY_POINTER) {
		takeover.successor = (void *)ekiden_run_guarded(policy->table->create, &next->args, 0, 0, 0, 0);
		ret = (s64)takeover.successor == LEFT ? LEFT : takeover.successor ? 0 : -EINVAL;
	} else if (policy != old->policy || request->params_len) {
		/* In the module that runs, its own memory serves: no other call may come in between. */
		if (policy == old->policy)
			next->args.arena = NULL;
		local_irq_disable();
		start_ns = ekiden_times_begin();
		ret = ekiden_run_guarded(policy->table->check, &next->args, 0, 0, 0, 0);
		if (ret == LEFT && policy == old->policy)
			ekiden_run_guarded(ekiden_rs_faulted, policy_slot - ekiden_running.policy_slots, 0, 0, 0, 0);
		ekiden_times_end(EKIDEN_TIME_CHECK, start_ns);
		local_irq_enable();
		ret = ret == LEFT ? LEFT : (u8)ret ? 0 : -EINVAL;
	} else {
		ret = 0;
	}
	preempt_enable();
	if (ret == LEFT || ret == -EINVAL)
		ret = ekiden_policy_refused(next, ret, reason);
	if (ret) {
		ekiden_free_instance(next);
		return ret;
	}
	if (request->moved == EKIDEN_MOVED_BY_POINTER) {
		next->args.arena = old->args.arena;
		next->args.arena_len = old->args.arena_len;
	}
	ekiden_forget_saved(next);
	takeover.to = next;
	/* What a version saves of itself is not on the call log: it cannot be replayed from there. */
	takeover.what = request->moved == EKIDEN_MOVED_BY_POINTER  ? EKIDEN_CALL_LOG_HAND_OVER
			: request->moved == EKIDEN_MOVED_CONVERTED ? EKIDEN_CALL_LOG_GO_ON
								   : EKIDEN_CALL_LOG_BEGIN;
	/* It takes a lock of the engine, which an event on this CPU may want. */
	local_irq_disable();
	start_ns = ekiden_times_begin();
	request->tasks = ekiden_rs_task_count();
	ekiden_times_end(EKIDEN_TIME_STATUS, start_ns);
	local_irq_enable();
	ret = ekiden_stop_cpus(take_over, &takeover, &swapped, &request->wait_ns);
	if (ret) {
		ekiden_free_instance(next);
		return ret;
	}
	policy_slot->upgrades++;
	ekiden_say_of("upgraded", policy_slot, NULL);
	policy_slot->wait_ns = request->wait_ns;
	policy_slot->wait_ns_max = max(policy_slot->wait_ns_max, policy_slot->wait_ns);
	if (swapped) {
		/* It panicked on the way: the next operation tells the kernel, and nothing is freed until it has let go. */
		policy_slot->faulted = next;
		takeover.outcome.status = EKIDEN_FAULT;
	}
	rcu_read_lock();
	preempt_disable();
	ekiden_carry_out(&takeover.outcome);
	preempt_enable();
	rcu_read_unlock();
	if (swapped)
		return -EIO;
	ekiden_queues_meet_policy(policy_slot - ekiden_running.policy_slots, request->moved == EKIDEN_MOVED_BY_POINTER);
	if (request->moved == EKIDEN_MOVED_BY_POINTER)
		swap(old->arena, next->arena);
	else
		ret = ekiden_introduce_tasks();
	ekiden_remember_instance(policy_slot, old);
	ekiden_free_instance(old);
	return ret;
}
