//! A policy that no kernel could run is refused with a sentence that names the place and what to do. One project serves all of these tests, so that
//! little is compiled.

use ekiden_build::{Builder, Checkout, Core, Error, Modules, Project, Target, Trust};
use ekiden_vm::Cache;
use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// A policy with something in one of its calls.
fn policy(items: &str, in_enqueue: &str) -> String {
    format!(
        "#![no_std]\n#![allow(warnings)]\n{items}\nuse ekiden::prelude::*;\n\n#[derive(Layout)]\npub struct Strange {{\n    queue: \
         SpinLock<FifoQueue<Self>>,\n    seen: Shared<u64>,\n}}\n\n#[policy]\nimpl Scheduler for Strange {{\n    fn new(_: &Env) -> Self {{\n        \
         Self {{ queue: SpinLock::default(), seen: Shared::new(0) }}\n    }}\n\n    fn enqueue(&self, cx: &Cx, task: &Task, token: Schedulable<Self>) \
         {{\n        {in_enqueue}\n        self.queue.lock().push_back(token);\n    }}\n\n    fn pick_next_task(&self, _: &Cx, _: CpuId) -> \
         Option<Schedulable<Self>> {{\n        self.queue.lock().pop_front()\n    }}\n}}\n"
    )
}

/// The line in which [`policy`] has what it is given.
fn line_of(source: &str, word: &str) -> String {
    let line = source.lines().position(|line| line.contains(word)).unwrap();
    format!("strange/src/lib.rs:{}", line + 1)
}

fn say(line: &str) {
    eprintln!("{line}");
}

/// The builder and core of all tests here: `ekiden.ko` is looked at once.
fn made() -> (Builder, Core) {
    static MADE: OnceLock<(Builder, Core)> = OnceLock::new();
    let make = || {
        let cache = Cache::from_env().unwrap();
        let kernel = ekiden_vm::fetch_newest_passing(&cache, &mut say).unwrap();
        let builder = Builder::new(&cache, &mut say).unwrap();
        let core = builder.core(&Target::fetched(&kernel), &mut say).unwrap();
        (builder, core)
    };
    MADE.get_or_init(make).clone()
}

struct Strange {
    directory: PathBuf,
    builder: Builder,
    core: Core,
    _turn: MutexGuard<'static, ()>,
}

impl Strange {
    /// The project, with nothing in it.
    fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("strange");
        for old in ["build.rs", "beside"] {
            let _ = fs::remove_file(directory.join(old));
            let _ = fs::remove_dir_all(directory.join(old));
        }
        let (builder, core) = made();
        let strange = Self { directory, builder, core, _turn: turn };
        strange.depend("");
        let lock = Checkout::find().unwrap().root().join("Cargo.lock");
        fs::copy(lock, strange.directory.join("Cargo.lock")).unwrap();
        strange
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.directory.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn depend(&self, dependencies: &str) {
        let ekiden = Checkout::find().unwrap().root().join("framework/ekiden");
        self.write(
            "Cargo.toml",
            &format!(
                "[package]\nname = \"strange\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n\n[package.metadata.ekiden]\npolicies = \
                 [\"Strange\"]\n\n[dependencies]\nekiden = {{ path = {ekiden:?} }}\n{dependencies}"
            ),
        );
    }

    /// A crate in a directory beside the policy's source.
    fn beside(&self, settings: &str, source: &str) {
        self.depend("beside = { path = \"beside\" }\n");
        self.write(
            "beside/Cargo.toml",
            &format!("[package]\nname = \"beside\"\nversion = \"0.3.0\"\nedition = \"2021\"\n{settings}"),
        );
        self.write("beside/src/lib.rs", source);
    }

    fn build(&self, source: &str, trust: Trust) -> Result<Modules, Error> {
        self.write("src/lib.rs", source);
        let project = Project::open(&self.directory).unwrap();
        self.builder.clone().trusting(trust).policies(&self.core, &project, project.policies(), &mut say)
    }

    /// The error, which has all of these words in it.
    fn refused(&self, source: &str, words: &[&str]) -> Error {
        let error = self.build(source, Trust::default()).unwrap_err();
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} are not all in: {text}");
        error
    }
}

fn allowing(name: &str) -> Trust {
    Trust { allow_unsafe: vec![name.to_owned()], ..Trust::default() }
}

#[test]
fn unsafe_code_of_a_policy_is_refused_whatever_its_source_says() {
    let strange = Strange::new();
    for (items, call) in [
        ("", "unsafe { core::arch::asm!(\"cli\", \"hlt\") };"),
        ("#![allow(unsafe_code)]", "unsafe { core::arch::asm!(\"cli\", \"hlt\") };"),
        ("", "extern \"C\" { fn panic(text: *const u8, ...) -> !; } unsafe { panic(b\"x\\0\".as_ptr()) };"),
        ("core::arch::global_asm!(\".globl here\", \"here: jmp here\");", ""),
        ("#[no_mangle] pub extern \"C\" fn schedule() {}", ""),
        ("#[link_section = \".init.text\"] pub static ODD: u64 = 7;", ""),
        ("macro_rules! go { () => { unsafe { core::hint::unreachable_unchecked() } } }", "if task.pid == 1 { go!() }"),
    ] {
        let error =
            strange.refused(&policy(items, call), &["whatever their source says", "`strange` at strange/src/lib.rs:"]);
        assert!(matches!(error, Error::Compile { .. }));
    }
    // Not even by name.
    assert!(strange.build(&policy("", "unsafe { core::arch::asm!(\"cli\") };"), allowing("strange")).is_err());
    let abort = policy("#![feature(core_intrinsics)]", "core::intrinsics::abort();");
    strange.refused(&abort, &["unstable features of Rust are not for policies", "src/lib.rs:3"]);
}

#[test]
fn a_policy_that_names_the_crate_of_locks_cannot_act_as_a_host_either() {
    let strange = Strange::new();
    let lock = Checkout::find().unwrap().root().join("framework/lock");
    strange.depend(&format!("ekiden-lock = {{ path = {lock:?} }}\n"));
    for (call, rest) in [("poison_locks", ", || ()"), ("forget_locks", ""), ("forget_dropped", "")] {
        let call = format!("ekiden::host::{call}(unsafe {{ ekiden_lock::OfHost::new() }}{rest});");
        let error =
            strange.refused(&policy("", &call), &["whatever their source says", "`strange` at strange/src/lib.rs:"]);
        assert!(matches!(error, Error::Compile { .. }));
    }
}

#[test]
fn unsafe_code_of_dependencies_is_named_and_refused_unless_allowed_by_name() {
    let strange = Strange::new();
    // The crate is from a registry; the compiler does not judge those.
    strange.depend("itoa = { version = \"1\", default-features = false }\n");
    let prints = policy("", "self.seen.add(itoa::Buffer::new().format(task.pid).len() as u64);");
    let error = strange.refused(&prints, &["`itoa` 1.", "src/lib.rs:", "--allow-unsafe itoa"]);
    let Error::Unsafe { crates, .. } = error else { panic!("{error}") };
    assert!(crates.len() == 1 && crates[0].places > 1, "{crates:?}");
    let modules = strange.build(&prints, allowing("itoa")).unwrap();
    assert!(modules.policies[0].1.exists());
    // Its own neighbour.
    strange
        .beside("", "#![no_std]\npub fn go() -> u64 {\n    unsafe { core::ptr::null::<u64>().read_volatile() }\n}\n");
    let goes = policy("", "self.seen.add(beside::go());");
    strange.refused(&goes, &["in `beside` at ", "src/lib.rs:3", "--allow-unsafe beside"]);
    assert!(strange.build(&goes, allowing("beside")).is_ok());
    // A macro, whose output is not judged where it is used.
    strange.beside(
        "",
        "#![no_std]\n#[macro_export]\nmacro_rules! go { () => { unsafe { core::hint::unreachable_unchecked() } } }\n",
    );
    let goes = policy("", "if task.pid == 1 { beside::go!() }");
    strange.refused(&goes, &["`beside` 0.3.0: one place at ", "beside/src/lib.rs:3"]);
    // What a build script writes.
    let generated = "#![no_std]\ninclude!(concat!(env!(\"OUT_DIR\"), \"/odd.rs\"));\n";
    strange.beside("", generated);
    let script = "fn main() { std::fs::write(std::env::var(\"OUT_DIR\").unwrap() + \"/odd.rs\", \"pub fn go() -> u64 { unsafe { 7 } }\").unwrap() }";
    strange.write("beside/build.rs", script);
    let trust = Trust { as_root: true, ..Trust::default() };
    let error = strange.build(&policy("", "self.seen.add(beside::go());"), trust).unwrap_err().to_string();
    assert!(error.contains("in `beside` at ") && error.contains("odd.rs:1"), "{error}");
}

#[test]
fn code_of_others_does_not_run_as_root_without_a_word() {
    let strange = Strange::new();
    let ran = strange.directory.join("ran");
    let script = format!("fn main() {{ std::fs::write({ran:?}, \"\").unwrap() }}");
    strange.write("build.rs", &script);
    let _ = fs::remove_file(&ran);
    if !nix::unistd::geteuid().is_root() {
        // An ordinary user decides alone.
        assert!(strange.build(&policy("", ""), Trust::default()).is_ok() && ran.exists());
        return;
    }
    let words = ["the build script of `strange` 0.1.0", "as an ordinary user", "--as-root"];
    let error = strange.refused(&policy("", ""), &words);
    assert!(matches!(error, Error::RunsAsRoot { .. }) && !ran.exists(), "{error}");
    let trust = Trust { as_root: true, ..Trust::default() };
    assert!(strange.build(&policy("", ""), trust).is_ok() && ran.exists());
    fs::remove_file(strange.directory.join("build.rs")).unwrap();
    strange.beside(
        "[lib]\nproc-macro = true\n",
        "#[proc_macro]\npub fn go(_: proc_macro::TokenStream) -> proc_macro::TokenStream { proc_macro::TokenStream::new() }\n",
    );
    strange.refused(&policy("", "beside::go!();"), &["the procedural macros of `beside` 0.3.0"]);
    // Settings of the project's can name a program, too, which is not run.
    strange.depend("");
    let linker = strange.directory.join("linker");
    fs::write(&linker, format!("#!/bin/sh\ntouch {}\nexit 1\n", ran.display())).unwrap();
    fs::set_permissions(&linker, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let _ = fs::remove_file(&ran);
    let settings = format!(
        "[build]\nrustc-wrapper = {linker:?}\nrustc-workspace-wrapper = {linker:?}\n[target.x86_64-unknown-linux-gnu]\nlinker = {linker:?}\n"
    );
    strange.write(".cargo/config.toml", &settings);
    let made = strange.build(&policy("", "self.seen.add(2);"), Trust::default());
    fs::remove_dir_all(strange.directory.join(".cargo")).unwrap();
    assert!(made.is_ok() && !ran.exists(), "{made:?}");
}

#[test]
fn what_the_kernel_lacks_is_told_with_its_line_and_what_to_do() {
    let strange = Strange::new();
    let refused = |items: &str, call: &str, at: &str, words: &[&str]| {
        let source = policy(items, call);
        let place = line_of(&source, at);
        strange.refused(&source, &[words, &[place.as_str()]].concat());
    };
    let float = "let share = f64::from(task.weight) * 0.75; self.seen.set(share as u64);";
    refused("", float, "0.75", &["floating-point numbers", "count in integers"]);
    let wide = "self.seen.set(((u128::from(task.runtime_ns) << 40) / u128::from(task.runtime_ns ^ 5)) as u64);";
    refused("", wide, "u128", &["128 bits", "64 bits"]);
    let frame = "let many = core::hint::black_box([task.runtime_ns; 2000]); self.seen.set(many[7]);";
    refused("", frame, "fn enqueue", &["bytes of variables on the stack", "`Box`"]);
    refused("use std::collections::HashMap;", "", "HashMap", &["there is no `std` in the kernel", "`alloc`"]);
    refused("", "std::thread::yield_now();", "yield_now", &["there is no `std` in the kernel"]);
    refused("", "println!(\"{}\", task.pid);", "println", &["nothing can be printed"]);
    let without = policy("", "").replace("#![no_std]", "");
    strange.refused(&without, &["begin the policy's src/lib.rs with #![no_std]"]);
    // A dependency that needs it is named.
    strange.beside("", "pub fn go() {}\n");
    strange.refused(&policy("", "beside::go();"), &["`beside` uses it", "default-features = false"]);
}

/// The program that makes the modules of a project. What this one has in its environment, its other threads have, too. The run of all tests
/// has just built it.
fn builds() -> PathBuf {
    if std::env::var_os("EKIDEN_BUILT").is_none() {
        let mut cargo = Command::new(env!("CARGO"));
        let status = cargo.args(["build", "--quiet", "--package", "ekiden-build", "--example", "build"]).status();
        assert!(status.unwrap().success(), "cannot build it");
    }
    let programs = std::env::current_exe().unwrap();
    programs.ancestors().nth(2).unwrap().join("examples/build")
}

/// A crate that is not in the program that gets the fuel would be linked as it is.
#[test]
fn a_policy_has_fuel_whatever_cargo_is_told_of_lto() {
    let strange = Strange::new();
    let (builds, kernel) =
        (builds(), ekiden_vm::fetch_newest_passing(&Cache::from_env().unwrap(), &mut |_| {}).unwrap());
    let module = |variables: &[(&str, &str)], before: usize| {
        // In another line each time, so that it is none of an earlier time.
        let source = policy(&"\n".repeat(before), "while core::hint::black_box(task.pid) == 1 {}");
        let line = line_of(&source, "while");
        strange.write("src/lib.rs", &source);
        let mut build = Command::new(&builds);
        build.arg(kernel.release()).arg(&strange.directory).envs(variables.iter().copied());
        let output = build.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        let module = fs::read(said.lines().find(|line| line.ends_with("ekiden_strange.ko")).unwrap()).unwrap();
        let loops = format!("an endless loop, or nearly, at {line}");
        assert!(
            module.windows(loops.len()).any(|bytes| bytes == loops.as_bytes()),
            "{variables:?}: {line} has no fuel"
        );
    };
    module(&[], 1);
    // All that cargo can be told at once: if one of these were heeded, there would be no fuel. Where root builds, the file is not read at all.
    strange.write(".cargo/config.toml", "[profile.release]\nlto = false\ncodegen-units = 16\n");
    let variables = [
        ("CARGO_PROFILE_RELEASE_LTO", "false"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ("CARGO_BUILD_RUSTFLAGS", "-Clto=off"),
        ("RUSTFLAGS", "-Clto=off"),
    ];
    module(&variables, 2);
    fs::remove_dir_all(strange.directory.join(".cargo")).unwrap();
}
