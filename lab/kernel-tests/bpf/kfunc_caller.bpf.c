// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two congestion controls of TCP. Both are struct_ops, as schedulers are. One calls a kfunc of ekiden.ko, which the
 * verifier has to refuse; the other shows that it is refused for that alone.
 */
#include "../../../hosts/kernel/bpf/kernel.h"

char _license[] SEC("license") = "GPL";

extern bool ekiden_chooses_cpu(u64 task) __ksym;

struct sock;

struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *sk);
	char name[16];
};

SEC("struct_ops/calls_kfunc_ssthresh")
u32 calls_kfunc_ssthresh(u64 *context)
{
	return ekiden_chooses_cpu(1) ? 2 : 4;
}

SEC("struct_ops/ordinary_ssthresh")
u32 ordinary_ssthresh(u64 *context)
{
	return 2;
}

SEC(".struct_ops")
struct tcp_congestion_ops calls_kfunc = {
	.ssthresh = (void *)calls_kfunc_ssthresh,
	.name = "calls_kfunc",
};

SEC(".struct_ops")
struct tcp_congestion_ops ordinary = {
	.ssthresh = (void *)ordinary_ssthresh,
	.name = "ordinary",
};
