//! Compiles the BPF program and makes a skeleton of it.

#[cfg(feature = "bpf")]
#[path = "../kernel/bpf/compile.rs"]
mod compile;

#[cfg(not(feature = "bpf"))]
fn main() {}

#[cfg(feature = "bpf")]
fn main() {
    let sources = compile::source("../kernel/bpf");
    compile::skeleton(&sources.join("agent.bpf.c"));
    for header in [
        "kernel.h",
        "beyond.h",
        "cgroups.h",
        "agent_shared.h",
        "agent_tell.h",
        "agent_decide.h",
        "agent_groups.h",
        "agent_watch.h",
    ] {
        println!("cargo:rerun-if-changed={}", sources.join(header).display());
    }
}
