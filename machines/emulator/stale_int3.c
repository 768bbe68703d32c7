// SPDX-License-Identifier: GPL-2.0-only
/*
 * Repairs what QEMU remembers wrongly of the kernel's code.
 *
 * The kernel puts int3 where it changes an instruction that other CPUs may run, and takes it away at the end. QEMU drops its translation of
 * the place before it does such a write. Where emulated CPUs run in threads, another one can translate the place between the two, and
 * keeps a translation of int3 for good. The kernel's handler then finds that nothing is being changed, and panics. Here it is told that
 * nothing happened, and QEMU is made to translate the place again. docs/virtual-machines.md has more.
 *
 * This is for guests alone: it refuses to be loaded where instructions are not QEMU's. A stale int3 in what runs from the interrupt to this
 * notifier could not be repaired. The kernel changes next to nothing there.
 */
#include <linux/atomic.h>
#include <linux/kdebug.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/notifier.h>
#include <linux/percpu.h>
#include <linux/ptrace.h>
#include <linux/string.h>
#include <asm/processor-flags.h>
#include <asm/processor.h>
#include <asm/special_insns.h>
#include <asm/text-patching.h>
/* Before Linux 6.16 asm/processor.h has what is in it. */
#if __has_include("asm/cpuid/api.h")
#include <asm/cpuid/api.h>
#endif

/* How often in a row a CPU goes back to an int3 that is in memory, too. One that belongs to a change is gone or known after once. */
#define RETRIES_MAX 100

static atomic_t repaired = ATOMIC_INIT(0);
static atomic_t retried = ATOMIC_INIT(0);

static int show(char *buffer, const struct kernel_param *param)
{
	return scnprintf(buffer, PAGE_SIZE, "%d\n", atomic_read((atomic_t *)param->arg));
}

static const struct kernel_param_ops shown = { .get = show };

module_param_cb(repaired, &shown, &repaired, 0444);
MODULE_PARM_DESC(repaired, "how often QEMU had a translation of int3 where the kernel had none");
module_param_cb(retried, &shown, &retried, 0444);
MODULE_PARM_DESC(retried, "how often a CPU executed an unknown int3 again, as the next change of the place may have begun");

/* The int3 that this CPU went back to last, and how often in a row. */
struct retry {
	unsigned long at;
	unsigned int count;
};
static DEFINE_PER_CPU(struct retry, last_retry);

/*
 * Writes the byte that is there. QEMU drops all translations of a byte that is written. Were it two steps, a change by another CPU could be
 * lost between them. Code is read-only but for a CPU without write protection, and write_cr0() would not take that away. Interrupts are off.
 */
static __always_inline void touch(u8 *at)
{
	unsigned long cr0 = native_read_cr0();

	asm volatile("mov %[open], %%cr0\n\t"
		     "lock orb $0, %[byte]\n\t"
		     "mov %[cr0], %%cr0"
		     : [byte] "+m"(*at)
		     : [open] "r"(cr0 & ~X86_CR0_WP), [cr0] "r"(cr0)
		     : "cc", "memory");
}

/*
 * After a stale int3, the next change of the same place may have begun when the kernel had looked for one. Then int3 is in memory, and is
 * met again if the CPU goes back. The CPU that changes the code waits for this one to take an interrupt, so that this one must not wait here.
 */
static notrace bool may_go_back(unsigned long at)
{
	struct retry *last = this_cpu_ptr(&last_retry);

	if (last->at != at) {
		last->at = at;
		last->count = 0;
	}
	return ++last->count <= RETRIES_MAX;
}
NOKPROBE_SYMBOL(may_go_back);

static notrace int on_die(struct notifier_block *block, unsigned long event, void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	unsigned long at;

	if (event != DIE_INT3 || user_mode(regs))
		return NOTIFY_DONE;
	at = regs->ip - INT3_INSN_SIZE;
	if (READ_ONCE(*(u8 *)at) == INT3_INSN_OPCODE) {
		/* After this many times it is a real one, which others may know. */
		if (!may_go_back(at))
			return NOTIFY_DONE;
		atomic_inc(&retried);
	} else {
		touch((u8 *)at);
		this_cpu_ptr(&last_retry)->count = 0;
		atomic_inc(&repaired);
	}
	regs->ip = at;
	return NOTIFY_STOP;
}
NOKPROBE_SYMBOL(on_die);

static struct notifier_block notifier = { .notifier_call = on_die, .priority = INT_MAX };

static bool is_emulated(void)
{
	u32 eax, signature[3];

	cpuid(0x40000000, &eax, &signature[0], &signature[1], &signature[2]);
	return boot_cpu_has(X86_FEATURE_HYPERVISOR) && !memcmp(signature, "TCGTCGTCGTCG", sizeof(signature));
}

static int __init stale_int3_init(void)
{
	return is_emulated() ? register_die_notifier(&notifier) : -ENODEV;
}

static void __exit stale_int3_exit(void)
{
	unregister_die_notifier(&notifier);
}

module_init(stale_int3_init);
module_exit(stale_int3_exit);
MODULE_DESCRIPTION("Repairs QEMU's stale translations of int3 in the kernel's code");
MODULE_LICENSE("GPL");
