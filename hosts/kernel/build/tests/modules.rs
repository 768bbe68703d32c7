//! Modules made of policies, for the newest stock kernel that passes the pre-flight.

use ekiden_build::{Builder, Error, Project, Target, new_project};
use ekiden_vm::Cache;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};
use std::{fs, path::Path};

/// The value of an entry in a module's `.modinfo`.
fn modinfo(module: &Path, key: &str) -> Option<String> {
    let bytes = fs::read(module).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let info = file.section_by_name(".modinfo").unwrap().data().unwrap();
    info.split(|byte| *byte == 0).find_map(|entry| Some(std::str::from_utf8(entry).ok()?.strip_prefix(key)?.to_owned()))
}

fn undefined(module: &Path) -> Vec<String> {
    let bytes = fs::read(module).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbols = file.symbols().filter(|symbol| symbol.is_undefined());
    symbols.map(|symbol| symbol.name().unwrap().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// How many places of a module end a call that has used up its fuel or its stack.
fn calls_of_spent(module: &Path) -> usize {
    let bytes = fs::read(module).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let spent = file.symbols().find(|symbol| symbol.name() == Ok("ekiden_spent")).unwrap().index();
    let calls = |section: object::Section<'_, '_>| {
        section.relocations().filter(|(_, to)| to.target() == RelocationTarget::Symbol(spent)).count()
    };
    file.sections().map(calls).sum()
}

#[test]
fn a_new_project_becomes_a_module_and_only_what_changed_is_made_again() {
    let progress = &mut |line: &str| eprintln!("{line}");
    let cache = Cache::from_env().unwrap();
    let parent = tempfile::tempdir().unwrap();
    let directory = new_project(parent.path(), "round-trip").unwrap();
    let project = Project::open(&directory).unwrap();
    let builder = Builder::new(&cache, progress).unwrap();
    let kernel = ekiden_vm::fetch_newest_passing(&cache, progress).unwrap();
    let mut build = || builder.build(&Target::fetched(&kernel), &project, project.policies(), progress);
    let modules = build().unwrap();
    let (name, module) = &modules.policies[0];
    assert_eq!((name.as_str(), module.file_name().unwrap().to_str()), ("round-trip", Some("ekiden_round_trip.ko")));
    for file in [&modules.core, module] {
        let magic = modinfo(file, "vermagic=").unwrap();
        assert_eq!(magic.split(' ').next(), Some(kernel.release()), "{}", file.display());
        assert!(modinfo(file, "ekiden_abi=").is_some(), "{}", file.display());
    }
    // Nothing of Rust is left over that the kernel would have to know.
    let rust: Vec<String> = undefined(module).into_iter().filter(|name| name.starts_with("_R")).collect();
    assert_eq!(rust, [""; 0]);
    assert!(undefined(module).contains(&"ekiden_register_policy".to_owned()));
    let without_loops = calls_of_spent(module);
    assert!(without_loops > 0, "nothing of the module has fuel");
    assert_eq!(build().unwrap().rebuilt, [""; 0]);

    let source = directory.join("src/lib.rs");
    let text = fs::read_to_string(&source).unwrap();
    fs::write(&source, text.replace("push_back", "push_front")).unwrap();
    assert_eq!(build().unwrap().rebuilt, ["ekiden_round_trip"]);

    // A loop more, and fuel for it in what is linked.
    let spins = "for n in 0..cpu { core::hint::black_box(n); }\n        cx.set_slice_ns";
    fs::write(&source, text.replacen("cx.set_slice_ns", spins, 1)).unwrap();
    assert_eq!(calls_of_spent(&build().unwrap().policies[0].1), without_loops + 1);

    // Settings of one's own do not reach the kernel: without link-time optimisation no function of the policy would have fuel.
    fs::create_dir(directory.join(".cargo")).unwrap();
    fs::write(directory.join(".cargo/config.toml"), "[profile.release]\nlto = false\noverflow-checks = false\n")
        .unwrap();
    assert_eq!(build().unwrap().rebuilt, [""; 0]);

    fs::write(&source, text.replace("pop_front", "pop_fornt")).unwrap();
    let error = build().unwrap_err();
    assert!(matches!(error, Error::Compile { .. }) && error.to_string().contains("src/lib.rs"), "{error}");

    fs::write(&source, text.replace("#![no_std]", "")).unwrap();
    let error = build().unwrap_err().to_string();
    assert!(error.contains("begin the policy's src/lib.rs with #![no_std]"), "{error}");

    let named = text.replace("const PARAMS", "const NAME: &'static str = \"other\";\n    const PARAMS");
    fs::write(&source, named).unwrap();
    let error = build().unwrap_err().to_string();
    assert!(error.contains("`round-trip`: its module is called after it"), "{error}");
}
