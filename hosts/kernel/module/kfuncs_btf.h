/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What kfuncs.c needs of linux/btf.h and uapi/linux/bpf.h, which define struct task_struct or include what does. kfuncs_check.c
 * compares it with these.
 */
#ifndef EKIDEN_KFUNCS_BTF_H
#define EKIDEN_KFUNCS_BTF_H

#define KF_RET_NULL (1 << 2)
#define KF_SLEEPABLE (1 << 5)
#define KF_RCU_PROTECTED (1 << 11)
#define BPF_PROG_TYPE_STRUCT_OPS 27
#define __bpf_kfunc __used __retain __noclone noinline

struct btf_id_set8;
struct module;

struct btf_kfunc_id_set {
	struct module *owner;
	struct btf_id_set8 *set;
	void *filter;
};

int register_btf_kfunc_id_set(int prog_type, const struct btf_kfunc_id_set *set);

#endif
