//! Compiles the BPF programs and makes skeletons of them.

#[cfg(feature = "bpf")]
#[path = "../bpf/compile.rs"]
mod compile;

#[cfg(not(feature = "bpf"))]
fn main() {}

#[cfg(feature = "bpf")]
fn main() {
    let sources = compile::source("../bpf");
    for name in ["ekiden", "baseline", "record", "look", "runqlat"] {
        compile::skeleton(&sources.join(format!("{name}.bpf.c")));
    }
    println!("cargo:rerun-if-changed={}", sources.display());
    println!("cargo:rerun-if-changed={}", sources.join("../include").display());
}
