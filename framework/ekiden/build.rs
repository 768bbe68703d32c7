//! Says what the layout of this crate's types depends on, besides their parameters: its own source and the compiler.

use std::{
    env, fs,
    hash::{DefaultHasher, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    let compiler = env::var_os("RUSTC").expect("cargo names the compiler");
    let version = Command::new(compiler).arg("-vV").output().expect("the compiler runs").stdout;
    let mut hasher = DefaultHasher::new();
    hasher.write(&version);
    for directory in ["src", "../abi/src", "../hints/src"] {
        let mut files = Vec::new();
        collect(Path::new(directory), &mut files);
        files.sort();
        files.iter().for_each(|file| hasher.write(&fs::read(file).expect("a source file can be read")));
        println!("cargo::rerun-if-changed={directory}");
    }
    println!("cargo::rustc-env=EKIDEN_FRAMEWORK={}", hasher.finish());
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the source is there").flatten() {
        let path = entry.path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}
