//! Compiles the BPF programs that only tests have.

#[path = "../../kernel/bpf/compile.rs"]
mod compile;

fn main() {
    compile::skeleton(&compile::source("bpf/stranger.bpf.c"));
    println!("cargo:rerun-if-changed={}", compile::source("../../kernel/bpf/kernel.h").display());
}
