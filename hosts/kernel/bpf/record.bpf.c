// SPDX-License-Identifier: GPL-2.0-only
/*
 * Writes down what the kernel's scheduler does, whichever scheduler that is. It hangs on tracepoints and changes nothing.
 * Each CPU has a ring of its own that the reader has mapped, so writing takes no lock and reading no call. The reader makes
 * records of observe/trace of it, and puts right what tracepoints tell twice or too early: see
 * hosts/kernel/loader/src/bpf/record.rs and rings.rs.
 */
#include "kernel.h"

char _license[] SEC("license") = "GPL";

#define BPF_F_MMAPABLE (1U << 10)
#define NAME_LEN 16
#define NICE_0_PRIO 120
/* 8192 CPUs, more than Linux has on any architecture. */
#define WORDS_MAX 128
/* Records that interrupts may write while one is being written. */
#define SLACK 16

/* As observe/trace/src/record.rs numbers them, and what only the reader knows. */
enum what {
	NEW = 1,
	WAKE = 2,
	ENQUEUE = 3,
	MIGRATE = 11,
	KICK = 13,
	NICE = 15,
	AFFINITY = 16,
	NAME = 27,
	ALLOWED = 28,
	CONSIDERED = 29,
	/* A wake-up and the task's waiting for the same CPU that follows. */
	WAKE_ENQUEUE = 256,
	/*
	 * The task runs next; the value is the PID of the one before, and in its upper half the slice, in nanoseconds. Which
	 * of these it is says why that one left.
	 */
	SWITCH_PREEMPTED = 257,
	SWITCH_BLOCKED = 258,
	SWITCH_EXITED = 259,
};

struct record {
	u64 time_ns;
	u64 value;
	u32 pid;
	/* What it is, 0 as long as it is not all there, and in the upper half a CPU. The reader puts the 0 back. */
	u32 what;
};

struct ring {
	/* Records that were begun. */
	u64 head;
	u64 lost;
	u64 pad1[6];
	/* Records that the reader has taken. */
	u64 tail;
	u64 pad2[7];
	struct record records[];
};

/* A ring for each CPU that there can be; the loader says how long they are. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct ring) + sizeof(struct record));
} rings SEC(".maps");

const volatile u32 nr_cpus;
/* Records of a ring, a power of two, less one. */
const volatile u64 ring_mask;
/* Whether changes of a task's set of CPUs can be seen; to tell of some only would be wrong. */
const volatile bool has_affinity;

static __always_inline u32 word_of(enum what what, u32 cpu)
{
	return what | cpu << 16;
}

static __always_inline struct record *at(struct ring *ring, u64 number)
{
	return (void *)ring + sizeof(*ring) + (number & ring_mask) * sizeof(struct record);
}

static __always_inline struct ring *ring_of(u32 this_cpu)
{
	return bpf_map_lookup_elem(&rings, &this_cpu);
}

/* An interrupt may write into the same ring at any point: it gets a place of its own behind this one. */
static __always_inline void note_on(u32 this_cpu, u64 time_ns, enum what what, u32 cpu, u32 pid, u64 value)
{
	struct ring *ring = ring_of(this_cpu);
	struct record *record;

	if (!ring)
		return;
	if (ring->head - ring->tail + SLACK > ring_mask) {
		__sync_fetch_and_add(&ring->lost, 1);
		return;
	}
	record = at(ring, __sync_fetch_and_add(&ring->head, 1));
	record->time_ns = time_ns;
	record->value = value;
	record->pid = pid;
	/* Orders all of it, so that the reader sees it whole. */
	__sync_lock_test_and_set(&record->what, word_of(what, cpu));
}

static __always_inline void note_at(u64 time_ns, enum what what, u32 cpu, u32 pid, u64 value)
{
	note_on(bpf_get_smp_processor_id(), time_ns, what, cpu, pid, value);
}

static __always_inline void note(enum what what, u32 cpu, u32 pid, u64 value)
{
	note_at(bpf_ktime_get_ns(), what, cpu, pid, value);
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
	enum what what = preempt || !prev_state ? SWITCH_PREEMPTED : prev_state & TASK_DEAD ? SWITCH_EXITED : SWITCH_BLOCKED;
	u32 cpu = bpf_get_smp_processor_id();
	u64 slice_ns = bpf_core_field_exists(next->scx.slice) ? next->scx.slice : 0;

	if (slice_ns > (u32)-1)
		slice_ns = (u32)-1;
	note_on(cpu, bpf_ktime_get_ns(), what, cpu, next->pid, (u32)prev->pid | slice_ns << 32);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	u32 cpu = bpf_get_smp_processor_id();

	/* What runs when a CPU is idle is an interrupt, and that is mostly the timer's. */
	note_on(cpu, bpf_ktime_get_ns(), WAKE, cpu_of(p), p->pid, waker->pid ? cpu + 1 : 0);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	u32 cpu = cpu_of(p), wake = word_of(WAKE, cpu), both = word_of(WAKE_ENQUEUE, cpu);
	struct ring *ring = ring_of(bpf_get_smp_processor_id());
	struct record *last;

	/* Most wake-ups come right after their beginning: then one record will do, if the reader has not taken it yet. */
	if (ring) {
		last = at(ring, ring->head - 1);
		if (last->pid == p->pid && __sync_val_compare_and_swap(&last->what, wake, both) == wake)
			return 0;
	}
	note(ENQUEUE, cpu, p->pid, SCX_ENQ_WAKEUP);
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

/* The CPUs of a domain, before the CPU that looks for tasks of others there. All at one time, so that nothing comes between. */
static __always_inline void note_domain(u32 cpu, u64 domain)
{
	u64 time_ns = bpf_ktime_get_ns();
	u32 i;

	/* Newer kernels have it behind all fields. */
	if (bpf_core_field_exists(struct sched_domain, span))
		domain += bpf_core_field_offset(struct sched_domain, span);
	else
		domain += bpf_core_type_size(struct sched_domain);
	for (i = 0; i < WORDS_MAX && i < (nr_cpus + 63) / 64; i++) {
		u64 word = 0;

		bpf_probe_read_kernel(&word, sizeof(word), (void *)(domain + i * sizeof(word)));
		note_at(time_ns, CONSIDERED, i, 0, word);
	}
	note_at(time_ns, KICK, cpu, 0, cpu);
}

/* What balances in the kernel's own scheduler: a function that the loader names, since its name differs. */
SEC("fentry")
int BPF_PROG(on_balance, int cpu)
{
	u64 domain = 0;

	/* As a number, see note_affinity. */
	bpf_get_func_arg(ctx, 2, &domain);
	note_domain(cpu, domain);
	return 0;
}
