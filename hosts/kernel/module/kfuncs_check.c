// SPDX-License-Identifier: GPL-2.0-only
/* Compares what kfuncs_btf.h had to write down with the kernel's own headers, and says which programs may call what is there. */
#include <linux/bpf.h>
#include <linux/btf.h>
#include "kfuncs.h"

static_assert(KF_RET_NULL == (1 << 2));
static_assert(KF_SLEEPABLE == (1 << 5));
static_assert(KF_RCU_PROTECTED == (1 << 11));
static_assert(BPF_PROG_TYPE_STRUCT_OPS == 27);
static_assert(offsetof(struct btf_kfunc_id_set, owner) == 0);
static_assert(offsetof(struct btf_kfunc_id_set, set) == sizeof(void *));
static_assert(offsetof(struct btf_kfunc_id_set, filter) == 2 * sizeof(void *));

/*
 * Other struct_ops, such as a congestion control or a qdisc, need fewer capabilities than a scheduler, and are called where
 * the guard must not be entered.
 */
int ekiden_is_refused(const struct bpf_prog *prog, u32 kfunc)
{
	return !prog->aux->st_ops || strcmp(prog->aux->st_ops->name, "sched_ext_ops") ? -EACCES : 0;
}
