// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two schedulers that ask why a policy is gone, as text. One has room of several sizes for it, none at all among them, and then refuses to
 * begin. The other may say that it has more room than there is, which the verifier has to refuse.
 */
#include "../../../hosts/kernel/bpf/kernel.h"

char _license[] SEC("license") = "GPL";

extern int ekiden_fault_text(char *text, u32 text__sz) __ksym;

/* As in texts.rs. */
#define ROOM 1024
#define BEFORE 256

/* What it said, and the memory in the middle of which the text is to be. */
int lengths[4];
char rooms[4][ROOM];
u32 any_size;

OPS_SLEEPABLE(init) s32 BPF_PROG(texts_init)
{
	lengths[0] = ekiden_fault_text(&rooms[0][BEFORE], 0);
	lengths[1] = ekiden_fault_text(&rooms[1][BEFORE], 1);
	lengths[2] = ekiden_fault_text(&rooms[2][BEFORE], 8);
	lengths[3] = ekiden_fault_text(&rooms[3][BEFORE], ROOM - BEFORE);
	return -1;
}

OPS_SLEEPABLE(init) s32 BPF_PROG(greedy_init)
{
	lengths[0] = ekiden_fault_text(rooms[0], any_size);
	return -1;
}

SEC(".struct_ops.link")
struct sched_ext_ops texts = {
	.init = (void *)texts_init,
	.name = "texts",
};

SEC(".struct_ops.link")
struct sched_ext_ops greedy = {
	.init = (void *)greedy_init,
	.name = "greedy",
};
