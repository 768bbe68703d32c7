//! Compiles the BPF programs that only tests have.

#[path = "../../hosts/kernel/bpf/compile.rs"]
mod compile;

fn main() {
    for name in ["kfunc_caller", "impostor", "texts"] {
        compile::skeleton(&compile::source(&format!("bpf/{name}.bpf.c")));
    }
    for header in ["bpf/kernel.h", "include/ekiden_abi.h"] {
        println!("cargo:rerun-if-changed={}", compile::source("../../hosts/kernel").join(header).display());
    }
}
