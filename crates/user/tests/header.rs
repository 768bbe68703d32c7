//! The C header compiles without a warning, speaks as the kernel expects, and finds policies in what the device says.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

const PROGRAM: &str = r#"
#include "ekiden.h"
#include "ekiden_control.h"
#include <stddef.h>
#include <stdio.h>

_Static_assert(EKIDEN_CHOOSE == EKIDEN_IOC_CHOOSE, "the same request");
_Static_assert(sizeof(struct ekiden_choice) == sizeof(struct ekiden_choose_request), "of the same size");
_Static_assert(offsetof(struct ekiden_choice, tid) == offsetof(struct ekiden_choose_request, tid), "tid");
_Static_assert(offsetof(struct ekiden_choice, seat) == offsetof(struct ekiden_choose_request, seat), "seat");
_Static_assert(offsetof(struct ekiden_choice, flags) == offsetof(struct ekiden_choose_request, flags), "flags");
_Static_assert(offsetof(struct ekiden_choice, params_len) == offsetof(struct ekiden_choose_request, params_len), "length");
_Static_assert(offsetof(struct ekiden_choice, params) == offsetof(struct ekiden_choose_request, params), "params");
_Static_assert(offsetof(struct ekiden_choice, error) == offsetof(struct ekiden_choose_request, error), "error");
_Static_assert(offsetof(struct ekiden_choice, error_len) == offsetof(struct ekiden_choose_request, error_len), "room");
_Static_assert(EKIDEN_CHOOSE_INHERIT == 1, "inherit");

static void say(const char *what, int result)
{
	printf("%s %d %d\n", what, result, result < 0 ? errno : 0);
}

int main(void)
{
	struct ekiden_choice choice;
	char reason[16];

	say("wfq", ekiden_number("wfq"));
	say("fifo", ekiden_number("fifo"));
	say("fif", ekiden_number("fif"));
	say("evil", ekiden_number("evil"));
	say("", ekiden_number(""));
	say("number 12", ekiden_find_(NULL, 12, &choice));
	say("seat of 12", (int)choice.seat);
	say("choose 9", ekiden_choose(0, 9, 1));
	say("choose evil", ekiden_choose_named(0, "evil", 1));
	say("evil with", ekiden_choose_with(0, "evil", 1, "slice_us=1", reason, sizeof(reason)));
	return 0;
}
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles a program with a file in the place of the device, and runs it.
fn run(device: &Path, language: &[&str]) -> String {
    run_program(PROGRAM, device, language)
}

fn run_program(text: &str, device: &Path, language: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("program.c"), directory.path().join("program"));
    std::fs::write(&source, text).unwrap();
    let output = Command::new("cc")
        .args(language)
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg(format!("-DEKIDEN_DEVICE=\"{}\"", device.display()))
        .args(["-I".as_ref(), root().join("include").as_os_str()])
        .args(["-I".as_ref(), root().join("kernel/include").as_os_str()])
        .args([source.as_os_str(), "-o".as_ref(), program.as_os_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap()
}

fn status() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/status.json")
}

fn expected() -> String {
    let no = libc::ENXIO;
    format!(
        "wfq 3 0\nfifo 12 0\nfif -1 {no}\nevil -1 {no}\n -1 {no}\nnumber 12 12 0\nseat of 12 3 0\nchoose 9 -1 {no}\n\
         choose evil -1 {no}\nevil with -1 {no}\n"
    )
}

#[test]
fn the_header_finds_what_runs_and_nothing_else() {
    assert_eq!(run(&status(), &["-std=c11"]), expected());
    assert_eq!(run(&status(), &["-std=gnu11", "-D_GNU_SOURCE"]), expected());
}

#[test]
fn the_header_says_that_nothing_runs_or_that_nothing_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let device = directory.path().join("device");
    let missing = run(&device, &["-std=c11"]);
    assert!(missing.starts_with(&format!("wfq -1 {}\n", libc::ENOENT)), "{missing}");
    std::fs::write(&device, r#"{"abi":9,"loaded":["wfq"]}"#).unwrap();
    let idle = run(&device, &["-std=c11"]);
    assert!(idle.starts_with(&format!("wfq -1 {}\n", libc::ENODEV)), "{idle}");
}

#[test]
fn the_program_in_the_readme_compiles_and_goes_on_without_a_policy() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, after) = readme.split_once("```c\n#include \"ekiden.h\"\n").expect("the README shows no C");
    let (shown, _) = after.split_once("```").expect("the README's C does not end");
    let program = format!(
        "#include \"ekiden.h\"\n#include <stdio.h>\nint main(void)\n{{\n{shown}\nputs(\"goes on\");\nreturn 0;\n}}\n"
    );
    let missing = root().join("include/no-such-device");
    assert_eq!(run_program(&program, &missing, &["-std=c11"]), "goes on\n");
}

#[test]
fn the_header_compiles_by_itself() {
    let header = root().join("include/ekiden.h");
    for language in [&["-x", "c", "-std=c11"][..], &["-x", "c", "-std=c99"], &["-x", "c++", "-std=c++17"]] {
        let mut command = Command::new("cc");
        command.args(language).args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-unused-function"]);
        // As an included file: a compiler may warn about a header that is compiled as if it were a program.
        let output = command.args(["-fsyntax-only", "-include"]).arg(&header).arg("/dev/null").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        // Not everybody who has a C compiler has one for C++.
        assert!(output.status.success() || errors.contains("cc1plus"), "{language:?}: {errors}");
    }
}
