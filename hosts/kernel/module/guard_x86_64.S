/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Guarded entry into Rust: like setjmp and longjmp, with one saved stack pointer per CPU. Guards nest: an interrupt may
 * deliver an event while a slower call is under way, and finishes before that call resumes.
 *
 * The caller keeps this CPU: interrupts or preemption are off.
 *
 * Every event has its own fuel, which the programs of policies take as they go round, and every call the stack below the saved
 * pointer up to a limit (hosts/kernel/fuel/src/lib.rs).
 */
#include <linux/linkage.h>
#include <linux/objtool.h>
#include <asm/nospec-branch.h>
#include <asm/percpu.h>
#include <asm/unwind_hints.h>

/* Back-edges in one event: 1.5 ms of the shortest loop, 16 ms of one that takes 30 ns. */
#define EKIDEN_FUEL	(1 << 19)
/* What a call of an event has if those before it have left less: no policy pays for what another one has done. */
#define EKIDEN_FUEL_LEAST	(1 << 16)

.macro GUARD_ENTER
	push	%rbp
	push	%rbx
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	pushq	PER_CPU_VAR(ekiden_fuel)
	movq	$EKIDEN_FUEL, PER_CPU_VAR(ekiden_fuel)
	pushq	PER_CPU_VAR(ekiden_guard_sp)
	movq	%rsp, PER_CPU_VAR(ekiden_guard_sp)
.endm

/* What returns has kept the caller's registers itself. */
.macro GUARD_EXIT
	popq	PER_CPU_VAR(ekiden_guard_sp)
	popq	PER_CPU_VAR(ekiden_fuel)
	addq	$(6 * 8), %rsp
	UNWIND_HINT_FUNC
	RET
.endm

/* What leaves from the middle has not. */
.macro GUARD_LEAVE
	movq	PER_CPU_VAR(ekiden_guard_sp), %rsp
	popq	PER_CPU_VAR(ekiden_guard_sp)
	popq	PER_CPU_VAR(ekiden_fuel)
	pop	%r15
	pop	%r14
	pop	%r13
	pop	%r12
	pop	%rbx
	pop	%rbp
	RET
.endm

.text

/* s64 ekiden_guarded(u64 a, u64 b, u64 c, u64 d, u64 e, ekiden_guarded_fn fn) */
SYM_FUNC_START(ekiden_guarded)
	GUARD_ENTER
	/* Rust's own calls of this kind go without a retpoline, too: there is one for each call into a policy. */
	ANNOTATE_RETPOLINE_SAFE
	call	*%r9
	GUARD_EXIT
SYM_FUNC_END(ekiden_guarded)

/*
 * The same for a policy that is called in an event, by the engine: it has what is left of the event's fuel, and so have those that are
 * called after it. What it was given to come through its own end does not count. Returns 0, or what ekiden_leave() says.
 */
SYM_FUNC_START(ekiden_guarded_policy)
	push	%rbp
	push	%rbx
	push	%r12
	push	%r13
	push	%r14
	push	%r15
	movq	PER_CPU_VAR(ekiden_fuel), %rax
	push	%rax
	cmpq	$EKIDEN_FUEL_LEAST, %rax
	jge	1f
	movq	$EKIDEN_FUEL_LEAST, PER_CPU_VAR(ekiden_fuel)
1:	pushq	PER_CPU_VAR(ekiden_guard_sp)
	movq	%rsp, PER_CPU_VAR(ekiden_guard_sp)
	ANNOTATE_RETPOLINE_SAFE
	call	*%r9
	xorl	%eax, %eax
	popq	PER_CPU_VAR(ekiden_guard_sp)
	addq	$(7 * 8), %rsp
	UNWIND_HINT_FUNC
	RET
SYM_FUNC_END(ekiden_guarded_policy)

/* bool ekiden_is_spent(void): whether calls of the event under way have used up its fuel, but for the least */
SYM_FUNC_START(ekiden_is_spent)
	xorl	%eax, %eax
	cmpq	$EKIDEN_FUEL_LEAST, PER_CPU_VAR(ekiden_fuel)
	setl	%al
	RET
SYM_FUNC_END(ekiden_is_spent)

/*
 * s64 ekiden_guarded_deliver(struct ekiden_event *event, struct ekiden_outcome *outcome): the same for the one function
 * that is called at every task switch, without payload and without an indirect call. A policy that is the only one is called
 * on this guard and this fuel.
 */
SYM_FUNC_START(ekiden_guarded_deliver)
	GUARD_ENTER
	movq	%rdi, %rdx	/* any address, of no bytes */
	xorl	%ecx, %ecx
	call	ekiden_rs_deliver
	GUARD_EXIT
SYM_FUNC_END(ekiden_guarded_deliver)

/* void ekiden_leave(s64 result): returns `result` from this CPU's innermost guarded call */
SYM_FUNC_START(ekiden_leave)
	movq	%rdi, %rax
	GUARD_LEAVE
SYM_FUNC_END(ekiden_leave)
STACK_FRAME_NON_STANDARD ekiden_leave
