// SPDX-License-Identifier: GPL-2.0-only
/* Policies that could run: the modules that they are in, and instances of them. */
#include <linux/cpumask.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "host.h"

LIST_HEAD(ekiden_policies);
DEFINE_MUTEX(ekiden_control);

int ekiden_register_policy(const struct ekiden_policy_table *table, struct module *owner)
{
	struct ekiden_policy *policy;

	if (table->abi_version != EKIDEN_ABI_VERSION || table->size != sizeof(*table)) {
		pr_err("ekiden: policy module %s was built for interface %u, this is %u; build it again\n", module_name(owner),
		       table->abi_version, EKIDEN_ABI_VERSION);
		return -ENOEXEC;
	}
	policy = kzalloc(sizeof(*policy), GFP_KERNEL);
	if (!policy)
		return -ENOMEM;
	policy->table = table;
	policy->owner = owner;
	mutex_lock(&ekiden_control);
	/* In front of an older version of the same policy. */
	list_add(&policy->node, &ekiden_policies);
	mutex_unlock(&ekiden_control);
	return 0;
}
EXPORT_SYMBOL_GPL(ekiden_register_policy);

/* A running policy holds a reference to its module, so this one is not running. */
void ekiden_unregister_policy(const struct ekiden_policy_table *table)
{
	struct ekiden_policy *policy, *next;

	mutex_lock(&ekiden_control);
	list_for_each_entry_safe(policy, next, &ekiden_policies, node) {
		if (policy->table == table) {
			list_del(&policy->node);
			kfree(policy);
		}
	}
	mutex_unlock(&ekiden_control);
}
EXPORT_SYMBOL_GPL(ekiden_unregister_policy);

/* Whether an instance of this module runs. */
bool ekiden_policy_runs(const struct ekiden_policy *policy)
{
	u32 i;

	for (i = 0; i < EKIDEN_POLICY_SLOTS; i++)
		if (ekiden_running.policy_slots[i].now && ekiden_running.policy_slots[i].now->policy == policy)
			return true;
	return false;
}

/* One that does not run: a module has one instance at a time. */
const struct ekiden_policy *ekiden_find_policy(const char *name)
{
	const struct ekiden_policy *policy;

	list_for_each_entry(policy, &ekiden_policies, node)
		if (!strncmp(policy->table->name, name, EKIDEN_NAME_LEN) && !ekiden_policy_runs(policy))
			return policy;
	return NULL;
}

const struct ekiden_policy *ekiden_find_module_policy(const char *name)
{
	const struct ekiden_policy *policy;

	list_for_each_entry(policy, &ekiden_policies, node)
		if (!strcmp(module_name(policy->owner), name))
			return policy;
	return NULL;
}

void ekiden_free_instance(struct ekiden_instance *instance)
{
	if (!instance)
		return;
	ekiden_keep_reason(instance->reason);
	free_percpu(instance->words);
	vfree(instance->arena);
	kvfree(instance->topology);
	kvfree(instance->params);
	kvfree(instance->saved);
	if (instance->policy)
		module_put(instance->policy->owner);
	kvfree(instance);
}

/* A copy of user memory; none of it needs to be there if the length is 0. */
void *ekiden_copy_in(u64 from, size_t len)
{
	void *copy = len ? vmemdup_user(u64_to_user_ptr(from), len) : kvzalloc(1, GFP_KERNEL);

	return copy ?: ERR_PTR(-ENOMEM);
}

/* What `policy` is made of, from user memory; the topology is that of `other` if there is one. */
struct ekiden_instance *ekiden_new_instance(const struct ekiden_policy *policy, const struct ekiden_create_request *request,
					    const struct ekiden_instance *other)
{
	struct ekiden_instance *instance = kvzalloc(sizeof(*instance), GFP_KERNEL);
	size_t topology_size = request->topology_len * sizeof(u32);
	long ret = -ENOMEM;

	if (!instance)
		return ERR_PTR(-ENOMEM);
	if (!try_module_get(policy->owner)) {
		kvfree(instance);
		return ERR_PTR(-ENOENT);
	}
	instance->policy = policy;
	instance->host = ekiden_candidate_host;
	instance->words = alloc_percpu(struct ekiden_text);
	if (!instance->words)
		goto out;
	instance->params = ekiden_copy_in(request->params, request->params_len);
	if (IS_ERR(instance->params)) {
		ret = PTR_ERR(instance->params);
		instance->params = NULL;
		goto out;
	}
	instance->saved = ekiden_copy_in(request->saved, request->saved_len);
	if (IS_ERR(instance->saved)) {
		ret = PTR_ERR(instance->saved);
		instance->saved = NULL;
		goto out;
	}
	if (other)
		instance->topology = kvmemdup(other->topology, topology_size, GFP_KERNEL) ?: ERR_PTR(-ENOMEM);
	else
		instance->topology = ekiden_copy_in(request->topology, topology_size);
	if (IS_ERR(instance->topology)) {
		ret = PTR_ERR(instance->topology);
		instance->topology = NULL;
		goto out;
	}
	/* The OOM killer is not to make room for it. */
	if ((long)(request->arena_bytes >> PAGE_SHIFT) < si_mem_available())
		instance->arena = __vmalloc(request->arena_bytes, GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN | __GFP_ZERO);
	if (!instance->arena)
		goto out;
	instance->args = (struct ekiden_create){
		.arena = instance->arena,
		.arena_len = request->arena_bytes,
		.topology = instance->topology,
		.topology_len = request->topology_len,
		.params = instance->params,
		.params_len = request->params_len,
		.saved = instance->saved,
		.saved_len = request->saved_len,
		.max_tasks = request->max_tasks,
		.host = &instance->host,
	};
	return instance;
out:
	ekiden_free_instance(instance);
	return ERR_PTR(ret);
}

/* What was saved is needed only while the instance is made. */
void ekiden_forget_saved(struct ekiden_instance *instance)
{
	kvfree(instance->saved);
	instance->saved = NULL;
	instance->args.saved = NULL;
	instance->args.saved_len = 0;
}

/* The reason of a policy that could not be made or looked at. */
long ekiden_policy_refused(struct ekiden_instance *instance, s64 ret, struct ekiden_text *reason)
{
	if (ret == LEFT && instance->reason)
		*reason = *instance->reason;
	else if (ret == LEFT)
		/* It was the engine. */
		reason->len = ekiden_do_fault_text(reason->bytes, sizeof(reason->bytes));
	else
		ekiden_set_text(reason, instance->args.error, instance->args.error_len);
	return -EINVAL;
}
