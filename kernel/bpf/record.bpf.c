// SPDX-License-Identifier: GPL-2.0-only
/*
 * Writes down what the kernel's scheduler does, whichever scheduler that is, in the records of crates/trace. It hangs on
 * tracepoints and changes nothing. The reader puts right what tracepoints tell twice or too early, see
 * crates/trace/src/tidy.rs.
 */
#include "kernel.h"

char _license[] SEC("license") = "GPL";

#define BPF_MAP_TYPE_RINGBUF 27
/* The reader looks by itself: to wake it would be part of what is recorded. */
#define BPF_RB_NO_WAKEUP 1
#define NAME_LEN 16
#define NICE_0_PRIO 120
/* 8192 CPUs, more than Linux has on any architecture. */
#define WORDS_MAX 128

/* As crates/trace/src/record.rs numbers them. */
enum what {
	NEW = 1,
	WAKE = 2,
	ENQUEUE = 3,
	RUN = 4,
	PREEMPT = 6,
	BLOCK = 7,
	EXIT = 9,
	IDLE = 10,
	MIGRATE = 11,
	NICE = 15,
	AFFINITY = 16,
	NAME = 27,
	ALLOWED = 28,
};

struct record {
	u64 time_ns;
	u32 pid;
	u16 cpu;
	u16 what;
	u64 value;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 26);
} records SEC(".maps");

/* Records that there was no room for. */
u64 lost;

const volatile u32 nr_cpus;
/* Whether changes of a task's set of CPUs can be seen; to tell of some only would be wrong. */
const volatile bool has_affinity;

static __always_inline void note(enum what what, u32 cpu, u32 pid, u64 value)
{
	struct record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&lost, 1);
		return;
	}
	record->time_ns = bpf_ktime_get_ns();
	record->pid = pid;
	record->cpu = cpu;
	record->what = what;
	record->value = value;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* Inline, so that reading the name is not done for nothing where there is no room. */
static __always_inline void note_name(u32 pid, const char *name)
{
	u64 pieces[NAME_LEN / 8] = {};

	bpf_probe_read_kernel_str(pieces, sizeof(pieces), name);
	note(NAME, 0, pid, pieces[0]);
	note(NAME, 1, pid, pieces[1]);
}

/* Which CPUs a task may use, if not all. */
static __always_inline void note_affinity(struct task_struct *p, bool even_all)
{
	/* A number, since the verifier does not let us step through an array that a pointer of the kernel's leads to. */
	u64 bits = 0;
	u32 i;

	if (p->nr_cpus_allowed >= nr_cpus && !even_all)
		return;
	note(AFFINITY, 0, p->pid, p->nr_cpus_allowed);
	bpf_core_read(&bits, sizeof(bits), &p->cpus_ptr);
	for (i = 0; i < WORDS_MAX && i < (nr_cpus + 63) / 64; i++) {
		u64 word = 0;

		bpf_probe_read_kernel(&word, sizeof(word), (void *)(bits + i * sizeof(word)));
		note(ALLOWED, i, p->pid, word);
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	u32 cpu = bpf_get_smp_processor_id();

	if (prev->pid) {
		if (preempt || !prev_state) {
			note(PREEMPT, cpu, prev->pid, 0);
			note(ENQUEUE, cpu, prev->pid, 0);
		} else {
			note(prev_state & TASK_DEAD ? EXIT : BLOCK, cpu, prev->pid, 0);
		}
	}
	if (next->pid)
		note(RUN, cpu, next->pid, bpf_core_field_exists(next->scx.slice) ? next->scx.slice : 0);
	else
		note(IDLE, cpu, 0, 0);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	struct task_struct *waker = bpf_get_current_task_btf();

	/* What runs when a CPU is idle is an interrupt, and that is mostly the timer's. */
	note(WAKE, cpu_of(p), p->pid, waker->pid ? bpf_get_smp_processor_id() + 1 : 0);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	note(ENQUEUE, cpu_of(p), p->pid, SCX_ENQ_WAKEUP);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	note(ENQUEUE, cpu_of(p), p->pid, 0);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int to)
{
	note(MIGRATE, to, p->pid, cpu_of(p));
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	note(NEW, bpf_get_smp_processor_id(), child->pid, parent->pid);
	note_name(child->pid, child->comm);
	if (child->static_prio != NICE_0_PRIO)
		note(NICE, 0, child->pid, (s64)child->static_prio - NICE_0_PRIO);
	if (has_affinity)
		note_affinity(child, false);
	return 0;
}

SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *p, const char *name)
{
	note_name(p->pid, name);
	return 0;
}

SEC("fentry/set_user_nice")
int BPF_PROG(on_nice, struct task_struct *p, long nice)
{
	note(NICE, cpu_of(p), p->pid, nice);
	return 0;
}

/* Every class calls it; kernels before 6.2 have it with other arguments behind the first. */
SEC("fexit/set_cpus_allowed_common")
int BPF_PROG(on_affinity, struct task_struct *p)
{
	/* While it may not leave its CPU, the set is that CPU's for a moment. */
	if (!p->migration_disabled)
		note_affinity(p, true);
	return 0;
}
