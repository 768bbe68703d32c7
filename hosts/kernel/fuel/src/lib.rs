//! Puts fuel and a limit of the stack into a policy's program, as assembly text, so that every call into it ends.
//!
//! Fuel is a counter of each CPU, which every event finds full: its calls share it. Each back-edge and each entry of a function that can recurse decrements it
//! (`writer.rs`). A function that can recurse also checks how much of the stack its call has used (`stack.rs`); what it and its callees need
//! at most, up to the next function that checks, is known when the module is made. So a call that neither loops nor recurses pays nothing.
//!
//! When fuel or stack runs out, out-of-line code behind the function calls `ekiden_spent` with a text that names the place
//! (hosts/kernel/policy/src/lib.rs). The compiler's output for the whole program is rewritten, its library included: with `lto = "fat"` that
//! is one file.
//!
//! A crate of its own because this has megabytes to go through for each module: it alone of all that makes modules has to be optimised where
//! tests are built.
#![forbid(unsafe_code)]

mod flags;
mod line;
mod place;
mod program;
mod stack;
mod unfit;
mod writer;

pub use unfit::{Unfit, unfit};

use program::Program;
use std::collections::BTreeMap;
use writer::Writer;

/// How much stack a call may use, in bytes, from where it was entered, sometimes by way of the engine. The least that kernels
/// have is 16 KiB for everything, and what a policy asks and how it is left comes on top.
const STACK: usize = 6 * 1024;
/// Bytes beyond the sizes of frames: saved flags, the return addresses of functions that are not ours.
const SLACK: usize = 32;
/// The handler when fuel or stack runs out.
const SPENT: &str = "ekiden_spent";

/// Assembly that is not understood: it may hold a loop that takes no fuel.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} of it, `{text}`: {why}")]
pub struct NotUnderstood {
    line: usize,
    text: String,
    why: &'static str,
}

/// What the compiler printed, with fuel and limits in it.
///
/// # Errors
/// Something in it is not understood.
pub fn limit(assembly: &str) -> Result<String, NotUnderstood> {
    let program = Program::read(assembly);
    program.check()?;
    let looks = program.looks();
    let mut writer =
        Writer { files: &program.files, texts: BTreeMap::new(), labels: 0, out: String::new(), apart: String::new() };
    let mut next = 0;
    for function in &program.functions {
        for line in &program.lines[next..function.begin] {
            writer.line(line);
        }
        writer.function(function, &program.lines, looks.get(function.name).copied());
        next = function.end;
    }
    for line in &program.lines[next..] {
        writer.line(line);
    }
    Ok(writer.finish())
}

#[cfg(test)]
mod tests {
    use super::{flags::flags_are_free, line::repeats, *};
    use expect_test::{Expect, expect};

    const FILES: &str = "\t.file\t1 \"crates/mine/src\" \"lib.rs\"\n\t.file\t2 \"library/core/src\" \"hint.rs\"\n";

    fn function(name: &str, body: &str) -> String {
        format!(
            "\t.type\t{name},@function\n{name}:\n{body}.Lfunc_end_{name}:\n\t.size\t{name}, .Lfunc_end_{name}-{name}\n"
        )
    }

    /// Compares a function in a program after the rewrite, between its label and its end, and the texts.
    fn check(program: &str, name: &str, expected: &Expect) {
        let out = limit(&format!("{FILES}{program}")).unwrap();
        let (_, function) = out.split_once(&format!("\n{name}:\n")).unwrap();
        let (function, rest) = function.split_once(&format!(".Lfunc_end_{name}:")).unwrap();
        let texts: String =
            rest.lines().filter(|line| line.contains(".asciz")).map(|line| format!("{line}\n")).collect();
        expected.assert_eq(&format!("{function}{texts}"));
    }

    fn check_one(body: &str, expected: &Expect) {
        check(&function("f", body), "f", expected);
    }

    #[test]
    fn a_loop_takes_fuel_where_it_jumps_back_and_tells_its_line() {
        check_one(
            "\t.loc\t1 7 0\n\txorl\t%eax, %eax\n.LBB0_1:\n\t.loc\t1 8 5\n\tincq\t%rax\n\tcmpq\t%rdi, %rax\n\tjne\t.LBB0_1\n\tretq\n",
            &expect![[r#"
                	.loc	1 7 0
                	xorl	%eax, %eax
                .LBB0_1:
                	.loc	1 8 5
                	incq	%rax
                	cmpq	%rdi, %rax
                	je	.Lekiden_on_2
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	jmp	.LBB0_1
                .Lekiden_on_2:
                	retq
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                	.asciz	"an endless loop, or nearly, at crates/mine/src/lib.rs:8"
            "#]],
        );
    }

    #[test]
    fn an_instruction_that_waits_takes_as_much_as_many_turns() {
        check_one(
            "\t.loc\t1 7 0\n.LBB0_1:\n\tpause\n\tjmp\t.LBB0_1\n",
            &expect![[r#"
                	.loc	1 7 0
                .LBB0_1:
                	subq	$64, %gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	pause
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_2
                	jmp	.LBB0_1
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                .Lekiden_end_2:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_2
                	.asciz	"an endless loop, or nearly, at crates/mine/src/lib.rs:7"
            "#]],
        );
    }

    #[test]
    fn every_condition_has_an_opposite_and_a_jump_without_one_goes_back_itself() {
        let jumps = |name: &str| {
            let out = limit(&function("f", &format!(".LBB0_1:\n\tretq\n\t{name}\t.LBB0_1\n\tretq\n"))).unwrap();
            let name = |line: &str| {
                line.strip_prefix('\t')?
                    .split('\t')
                    .next()
                    .filter(|name| {
                        *name != "jmp" && *name != "js" && (name.starts_with('j') || name.starts_with("loop"))
                    })
                    .map(str::to_owned)
            };
            out.lines().filter_map(name).collect::<Vec<_>>()
        };
        for (one, other) in [("je", "jne"), ("ja", "jna"), ("jbe", "jnbe"), ("jl", "jnl"), ("jo", "jno"), ("jp", "jnp")]
        {
            assert_eq!((jumps(one), jumps(other)), (vec![other.to_owned()], vec![one.to_owned()]));
        }
        assert_eq!(jumps("jrcxz"), ["jrcxz"]);
    }

    #[test]
    fn flags_that_are_read_later_are_kept() {
        check_one(
            "\tcmpq\t%rdi, %rax\n.LBB0_1:\n\tmovq\t%rax, %rcx\n\tcmoveq\t%rdx, %rcx\n\tjmp\t.LBB0_1\n",
            &expect![[r#"
                	cmpq	%rdi, %rax
                .LBB0_1:
                	movq	%rax, %rcx
                	cmoveq	%rdx, %rcx
                	pushfq
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	popfq
                	jmp	.LBB0_1
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                	.asciz	"an endless loop, or nearly, at a place that the compiler does not tell"
            "#]],
        );
    }

    fn free(body: &str) -> bool {
        let lines: Vec<&str> = body.lines().collect();
        let label = |(at, line): (usize, &&'static str)| Some((line.strip_suffix(':')?, at));
        let owned: Vec<&'static str> = lines.iter().map(|line| &*line.to_string().leak()).collect();
        let labels = owned.iter().enumerate().filter_map(label).collect();
        flags_are_free(&lines, &labels, 0)
    }

    #[test]
    fn whether_flags_are_looked_at_is_found_out_instruction_by_instruction() {
        for dead in [
            "movq\t%rax, (%rdi)\ntestq\t%rax, %rax\nje\t.Lx",
            "leaq\t8(%rsp), %rdi\nshlq\t%cl, %rdi\nadcq\t%rax, %rdi",
            "pushq\t%rbx\npause\nlock\t\txaddq\t%rax, (%rdi)\nje\t.Lx",
            "callq\tg@PLT\nje\t.Lx",
            "jmp\t.Lx\n.Ly:\nje\t.Ly\n.Lx:\nsubl\t%eax, %ecx",
            "jmp\tanother_function",
            ".Lx:\njmp\t.Lx",
            "rep;movsq\t(%rsi), %es:(%rdi)\nxorl\t%eax, %eax",
            "movzbl\t%al, %eax\nmovsbl\t%al, %eax\ncltq\nretq",
        ] {
            assert!(free(dead), "{dead}");
        }
        for live in [
            "je\t.Lx",
            "movq\t%rax, %rcx\nsetb\t%al",
            "cmovneq\t%rax, %rcx",
            "adcq\t$0, %rax",
            "sbbb\t%al, %al",
            "jmp\t.Lx\n.Ly:\nretq\n.Lx:\njb\t.Ly",
            "pushfq",
            "an_unknown_instruction\t%rax",
            "jmpq\t*.LJTI0_0(,%rax,8)",
        ] {
            assert!(!free(live), "{live}");
        }
    }

    #[test]
    fn a_function_that_calls_itself_looks_at_the_stack_after_its_landing_pad() {
        check_one(
            "\t.loc\t1 3 0\n\tendbr64\n\tpushq\t%rbx\n\tsubq\t$64, %rsp\n\tcallq\tf\n\taddq\t$64, %rsp\n\tpopq\t%rbx\n\tjmp\t__x86_return_thunk\n",
            &expect![[r#"
                	.loc	1 3 0
                	endbr64
                	movq	%gs:ekiden_guard_sp(%rip), %r11
                	subq	%rsp, %r11
                	cmpq	$6032, %r11
                	ja	.Lekiden_end_1
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_2
                	pushq	%rbx
                	subq	$64, %rsp
                	callq	f
                	addq	$64, %rsp
                	popq	%rbx
                	jmp	__x86_return_thunk
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                .Lekiden_end_2:
                	movq	$.Lekiden_text_1, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_2
                	.asciz	"a recursion without end, or nearly, at crates/mine/src/lib.rs:3"
                	.asciz	"the stack is used up at crates/mine/src/lib.rs:3"
            "#]],
        );
    }

    #[test]
    fn a_function_without_loop_and_recursion_is_left_as_it_is() {
        let body = "\tpushq\t%rax\n\ttestq\t%rdi, %rdi\n\tje\t.LBB0_1\n\tcallq\tg\n.LBB0_1:\n\tpopq\t%rax\n\tjmp\tg\n";
        let program = function("f", body) + &function("g", "\tcallq\tmemcpy@PLT\n\tretq\n");
        check(
            &program,
            "f",
            &expect![[r#"
                	pushq	%rax
                	testq	%rdi, %rdi
                	je	.LBB0_1
                	callq	g
                .LBB0_1:
                	popq	%rax
                	jmp	g
                	.asciz	"far too much is copied, filled or compared at a place that the compiler does not tell"
            "#]],
        );
    }

    fn looks(program: &str) -> Vec<String> {
        let text = format!("{FILES}{program}");
        let looks = Program::read(&text).looks();
        looks.into_iter().map(|(name, need)| format!("{name} {need}")).collect()
    }

    #[test]
    fn one_function_of_every_cycle_checks_the_stack() {
        let call = |to: &str| format!("\tpushq\t%rax\n\tcallq\t{to}\n\tpopq\t%rax\n\tretq\n");
        let there_and_back = function("f", &call("g")) + &function("g", "\tjmp\tf@PLT\n") + &function("h", &call("f"));
        assert_eq!(looks(&there_and_back), ["f 56"]);
        // By way of a pointer: functions whose address is anywhere but in the table, and those that may come to call a pointer.
        let pointer = function("f", &call("*%rax")) + &function("g", &call("__x86_indirect_thunk_r11"));
        assert_eq!(looks(&pointer), Vec::<String>::new());
        assert_eq!(looks(&format!("{pointer}.Lvtable:\n\t.quad\tg\nekiden_policy_table:\n\t.quad\tf\n")), ["g 48"]);
        let leaf = function("f", &call("*%rax")) + &function("g", "\tsubq\t$104, %rsp\n\taddq\t$104, %rsp\n\tretq\n");
        assert_eq!(looks(&format!("{leaf}.Lvtable:\n\t.quad\tg\n")), Vec::<String>::new());
    }

    #[test]
    fn a_function_that_needs_much_stack_checks_it() {
        let large = "\tsubq\t$3000, %rsp\n\taddq\t$3000, %rsp\n\tretq\n";
        let call = |to: &str| format!("\tsubq\t$1500, %rsp\n\tcallq\t{to}\n\taddq\t$1500, %rsp\n\tretq\n");
        assert_eq!(looks(&function("f", large)), ["f 3040"]);
        // Where a call begins there is more.
        assert_eq!(looks(&(function("f", large) + "ekiden_policy_table:\n\t.quad\tf\n")), Vec::<String>::new());
        // A callee that checks is not counted by its callers; one that does not, is.
        assert_eq!(looks(&(function("f", &call("g")) + &function("g", large))), ["g 3040"]);
        let chain = function("f", &call("g")) + &function("g", &call("memcpy@PLT"));
        assert_eq!(looks(&chain), ["f 3048"]);
        // Its pages are touched one after the other, as the compiler does it for large frames.
        let touched = "\tleaq\t-12288(%rsp), %r11\n.LBB0_1:\n\tsubq\t$4096, %rsp\n\tmovq\t$0, (%rsp)\n\tcmpq\t%r11, %rsp\n\tjne\t.LBB0_1\n\tretq\n";
        assert_eq!(looks(&function("f", touched)), ["f 16424"]);
        assert!(
            limit(&function("f", touched)).unwrap().contains("cmpq\t$0, %r11\n\tja\t"),
            "it can never have as much"
        );
    }

    #[test]
    fn what_ends_a_call_does_not_check_the_stack() {
        let end = function(SPENT, "\tcallq\tlast\n\tretq\n") + &function("last", "\tcallq\t*%rax\n\tretq\n");
        assert_eq!(looks(&format!("{end}.Lvtable:\n\t.quad\tlast\n")), Vec::<String>::new());
        // A panic that every function may call does not make them all check.
        let panic = function("x_rust_begin_unwind", "\tcallq\tprint\n\tretq\n")
            + &function("print", "\tcallq\tx_rust_begin_unwind\n\tretq\n");
        assert_eq!(looks(&panic), ["x_rust_begin_unwind 48"]);
    }

    #[test]
    fn a_place_in_the_authors_files_is_told_rather_than_one_in_the_library() {
        check_one(
            "\t.loc\t1 7 0\n\ttestq\t%rdi, %rdi\n\t.loc\t1 0 0\n.LBB0_1:\n\t.loc\t2 491 5\n\t#APP\n\t#NO_APP\n\tjmp\t.LBB0_1\n",
            &expect![[r#"
                	.loc	1 7 0
                	testq	%rdi, %rdi
                	.loc	1 0 0
                .LBB0_1:
                	.loc	2 491 5
                	#APP
                	#NO_APP
                	decq	%gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	jmp	.LBB0_1
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                	.asciz	"an endless loop, or nearly, at crates/mine/src/lib.rs:7"
            "#]],
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        let why = |program: &str| limit(program).unwrap_err().to_string();
        let in_f = |body: &str| why(&function("f", body));
        for (body, line) in [
            ("\tpause\n\tjmp\t1b\n", "`jmp\t1b`"),
            ("1:\n\tpause; jmp\t1b\n", "`pause; jmp\t1b`"),
            (".Lx: jmp\t.Lx\n", "`.Lx: jmp\t.Lx`"),
            ("\tjmp\t.\n", "`jmp\t.`"),
            ("\tjmp\tf+4\n", "`jmp\tf+4`"),
            ("\tjne\t.Lelsewhere\n", "`jne\t.Lelsewhere`"),
            ("\tcallq\t.Lbelow\n.Lbelow:\n", "`callq\t.Lbelow`"),
            ("\t.byte\t0xeb, 0xfe\n", "`.byte\t0xeb, 0xfe`"),
            ("\t.section\t.text.more\n\tnop\n", "`.section\t.text.more`"),
        ] {
            assert!(in_f(body).contains(line), "{}", in_f(body));
        }
        let f = function("f", "\tretq\n");
        let g = "g:\n.L2:\n\tjmp\t.L2\n\t.size\tg, 2\n";
        for kind in ["", "\t.type\tg,%function\n", "\t.type\tg,STT_FUNC\n"] {
            assert!(why(&format!("{f}{kind}{g}")).contains("outside of functions"), "{kind}");
            assert!(why(&format!("{kind}{g}{f}")).contains("outside of functions"), "{kind}");
        }
        // Into the middle of another one, and a function without an end.
        assert!(why(&(function("f", "inner:\n\tretq\n") + &function("g", "\tjmp\tinner\n"))).contains("where it goes"));
        assert!(why("\t.type\tf,@function\nf:\n\tretq\n").contains("end is not said"));
        assert!(why("").contains("there is no function"));
    }

    #[test]
    fn what_goes_through_memory_takes_fuel_for_its_length() {
        check_one(
            "\t.loc\t1 4 0\n\tcallq\tmemmove@PLT\n\trep;movsq\t(%rsi), %es:(%rdi)\n\tjmp\tmemset\n",
            &expect![[r#"
                	.loc	1 4 0
                	movq	%rdx, %r11
                	shrq	$5, %r11
                	subq	%r11, %gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_1
                	callq	memmove@PLT
                	pushfq
                	pushq	%rcx
                	shrq	$2, %rcx
                	subq	%rcx, %gs:ekiden_fuel(%rip)
                	popq	%rcx
                	js	.Lekiden_end_2
                	popfq
                	rep;movsq	(%rsi), %es:(%rdi)
                	movq	%rdx, %r11
                	shrq	$5, %r11
                	subq	%r11, %gs:ekiden_fuel(%rip)
                	js	.Lekiden_end_3
                	jmp	memset
                .Lekiden_end_1:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_1
                .Lekiden_end_2:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_2
                .Lekiden_end_3:
                	movq	$.Lekiden_text_0, %rdi
                	callq	ekiden_spent@PLT
                	jmp	.Lekiden_end_3
                	.asciz	"far too much is copied, filled or compared at crates/mine/src/lib.rs:4"
            "#]],
        );
        assert_eq!(["rep stosb", "rep;movsw", "\trepne\tscasl\t%eax"].map(repeats), [Some(0), Some(1), Some(2)]);
        assert_eq!(
            ["retq", "report", "\tlock\txaddq\t%rax, (%rdi)", "\trep\tbsfq\t%rax, %rcx"].map(repeats),
            [None; 4]
        );
    }
}
