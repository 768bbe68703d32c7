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
_Static_assert(offsetof(struct ekiden_choice, slot) == offsetof(struct ekiden_choose_request, policy_slot), "slot");
_Static_assert(offsetof(struct ekiden_choice, flags) == offsetof(struct ekiden_choose_request, flags), "flags");
_Static_assert(offsetof(struct ekiden_choice, params_len) == offsetof(struct ekiden_choose_request, params_len), "length");
_Static_assert(offsetof(struct ekiden_choice, params) == offsetof(struct ekiden_choose_request, params), "params");
_Static_assert(offsetof(struct ekiden_choice, error) == offsetof(struct ekiden_choose_request, error), "error");
_Static_assert(offsetof(struct ekiden_choice, error_len) == offsetof(struct ekiden_choose_request, error_len), "room");
_Static_assert(EKIDEN_CHOOSE_INHERIT == 1, "inherit");

_Static_assert(EKIDEN_OPEN_QUEUE == EKIDEN_IOC_OPEN && EKIDEN_RING_QUEUE == EKIDEN_IOC_RING, "the same requests");
_Static_assert(sizeof(struct ekiden_open_queue) == sizeof(struct ekiden_open_request), "of the same size");
_Static_assert(offsetof(struct ekiden_open_queue, up_bytes) == offsetof(struct ekiden_open_request, up_bytes), "up");
_Static_assert(offsetof(struct ekiden_open_queue, slot) == offsetof(struct ekiden_open_request, policy_slot), "slot");
_Static_assert(offsetof(struct ekiden_open_queue, bytes) == offsetof(struct ekiden_open_request, bytes), "bytes");
_Static_assert(offsetof(struct ekiden_open_queue, flags) == offsetof(struct ekiden_open_request, flags), "flags");

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
	say("policy slot of 12", (int)choice.slot);
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
        .args(["-I".as_ref(), root().join("framework/include").as_os_str()])
        .args(["-I".as_ref(), root().join("hosts/kernel/include").as_os_str()])
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
        "wfq 3 0\nfifo 12 0\nfif -1 {no}\nevil -1 {no}\n -1 {no}\nnumber 12 12 0\npolicy slot of 12 3 0\nchoose 9 -1 {no}\n\
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
fn the_program_in_the_documents_compiles_and_goes_on_without_a_policy() {
    let text = std::fs::read_to_string(root().join("docs/running.md")).unwrap();
    let (_, after) = text.split_once("```c\n#include \"ekiden.h\"\n").expect("docs/running.md shows no C");
    let (shown, _) = after.split_once("```").expect("its C does not end");
    let program = format!(
        "#include \"ekiden.h\"\n#include <stdio.h>\nint main(void)\n{{\n{shown}\nputs(\"goes on\");\nreturn 0;\n}}\n"
    );
    let missing = root().join("framework/include/no-such-device");
    assert_eq!(run_program(&program, &missing, &["-std=c11"]), "goes on\n");
}

#[test]
fn the_header_compiles_by_itself() {
    let header = root().join("framework/include/ekiden.h");
    for language in [&["-x", "c", "-std=c11"][..], &["-x", "c", "-std=c99"], &["-x", "c++", "-std=c++17"]] {
        let mut command = Command::new("cc");
        command.args(language).args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-unused-function"]);
        // As an included file: a compiler may warn about a header that is compiled as if it were a program.
        let output = command.args(["-fsyntax-only", "-include"]).arg(&header).arg("/dev/null").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        // Not every machine with a C compiler has one for C++.
        assert!(output.status.success() || errors.contains("cc1plus"), "{language:?}: {errors}");
    }
}

/// The C side writes what the Rust side reads, in memory that is a file here, and the other way round.
#[test]
fn c_and_rust_understand_each_other() {
    use ekiden_hints::{Consumer, Geometry, Producer, Side};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    let side = |bytes, records| Side { fingerprint: 1, bytes, records };
    let geometry = Geometry { up: side(12, 4), down: side(20, 2) };
    let words: Vec<_> = (0..geometry.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
    assert!(geometry.write(&words));
    let mut notices = Producer::at(geometry.down(&words).unwrap(), 0);
    notices.push(b"abcdefghijklmnopqrst").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queue");
    let bytes =
        |words: &[AtomicU64]| words.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect::<Vec<_>>();
    std::fs::write(&file, bytes(&words)).unwrap();
    let program = format!(
        r#"
#include "ekiden.h"
#include <stdio.h>
int main(void)
{{
	struct ekiden_queue queue;
	char notice[21] = "";
	int i, told;

	memset(&queue, 0, sizeof(queue));
	queue.fd = open("{}", O_RDWR);
	queue.bytes = {};
	queue.words = (volatile uint64_t *)mmap(NULL, queue.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, queue.fd, 0);
	queue.up_bytes = 12;
	queue.down_bytes = 20;
	queue.up_records = 4;
	queue.down_records = 2;
	for (i = 0; i < 6; i++) {{
		unsigned int hint[3] = {{ 7, 8, (unsigned int)i }};

		told = ekiden_queue_send(&queue, hint);
		printf("%d", told);
	}}
	told = ekiden_queue_receive(&queue, notice);
	printf(" %d %s", told, notice);
	told = ekiden_queue_receive(&queue, notice);
	printf(" %d %d", told, errno == EAGAIN);
	ekiden_queue_close(&queue);
	return 0;
}}
"#,
        file.display(),
        geometry.bytes()
    );
    let said = run_program(&program, &status(), &["-std=c11"]);
    assert_eq!(said, "0000-1-1 0 abcdefghijklmnopqrst -1 1");
    let left = std::fs::read(&file).unwrap();
    let read = |word: &[u8]| AtomicU64::new(u64::from_ne_bytes(word.try_into().unwrap()));
    let words: Vec<_> = left.chunks_exact(8).map(read).collect();
    let mut hints = Consumer::at(geometry.up(&words).unwrap(), 0);
    let mut room = [0; 64];
    assert_eq!(hints.take(&mut room), Ok(48));
    let numbers = |at: usize| u32::from_ne_bytes(room[at * 4..at * 4 + 4].try_into().unwrap());
    assert_eq!([0, 1, 2, 9, 10, 11].map(numbers), [7, 8, 0, 7, 8, 3]);
    let again = Producer::at(geometry.up(&words).unwrap(), 4);
    assert_eq!(again.times_full(), 2);
}
