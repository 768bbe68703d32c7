//! Compiles the BPF programs and makes skeletons of them.

#[path = "../bpf/compile.rs"]
mod compile;

fn main() {
    let sources = compile::source("../bpf");
    for name in ["ekiden", "baseline", "record", "look", "runqlat"] {
        compile::skeleton(&sources.join(format!("{name}.bpf.c")));
    }
    println!("cargo:rerun-if-changed={}", sources.display());
    println!("cargo:rerun-if-changed={}", sources.join("../include").display());
}
