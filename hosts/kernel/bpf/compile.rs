//! How build scripts compile BPF programs.

use std::{
    env,
    path::{Path, PathBuf},
};

use libbpf_cargo::SkeletonBuilder;

/// A file that the build script's own directory names.
pub(crate) fn source(path: &str) -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR")).join(path)
}

/// Where a build script writes.
fn out(file: &str) -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(file)
}

/// Compiles one program and writes a skeleton of it, NAME.skel.rs.
pub(crate) fn skeleton(source: &Path) {
    let name = source.file_name().expect("a file").to_string_lossy().replace(".bpf.c", "");
    let mut builder = SkeletonBuilder::new();
    builder.source(source).clang_args(["-mcpu=v3", "-Wall"]);
    // What it writes is not read by people, and where rustup has no rustfmt its stand-in for it fails.
    builder.rustfmt(out("no-rustfmt"));
    if let Some(clang) = clang() {
        builder.clang(clang);
    }
    builder.build_and_generate(out(&format!("{name}.skel.rs"))).unwrap_or_else(|error| {
        panic!("cannot compile {name}.bpf.c (./ekiden doctor says what is missing): {error:#?}")
    });
    println!("cargo:rerun-if-changed={}", source.display());
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
