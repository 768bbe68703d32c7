//! Compiles the BPF programs and makes skeletons of them.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let sources = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
        .join("../../kernel/bpf");
    for name in ["ekiden", "baseline", "record", "look", "runqlat"] {
        let mut builder = SkeletonBuilder::new();
        builder.source(sources.join(format!("{name}.bpf.c"))).clang_args(["-mcpu=v3", "-Wall"]);
        // Nobody reads what it writes, and where rustup has no rustfmt its stand-in for it fails.
        builder.rustfmt(out.join("no-rustfmt"));
        if let Some(clang) = clang() {
            builder.clang(clang);
        }
        builder.build_and_generate(out.join(format!("{name}.skel.rs"))).unwrap_or_else(|error| {
            panic!("cannot compile {name}.bpf.c (./ekiden doctor says what is missing): {error:#?}")
        });
    }
    println!("cargo:rerun-if-changed={}", sources.display());
    println!("cargo:rerun-if-changed={}", sources.join("../include").display());
    println!("cargo:rerun-if-env-changed=EKIDEN_CLANG");
}

/// The newest clang that is installed; BPF needs 16 or newer.
fn clang() -> Option<PathBuf> {
    if let Some(clang) = env::var_os("EKIDEN_CLANG") {
        return Some(clang.into());
    }
    let found = |name: &str| {
        env::split_paths(&env::var_os("PATH")?).map(|directory| directory.join(name)).find(|path| path.exists())
    };
    (16..30).rev().map(|version| format!("clang-{version}")).find_map(|name| found(&name))
}
