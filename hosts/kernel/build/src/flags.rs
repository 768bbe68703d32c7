//! The compiler flags that make Rust's code fit into a kernel.
//!
//! They mirror what `arch/x86/Makefile` of Linux gives its own Rust code: objtool, the loader of modules and the
//! hardware's protections expect code of a certain form, which depends on how the kernel was configured.

use crate::{Error, Result, Toolchain};

/// The target that everything in the kernel is compiled for.
pub(crate) const TRIPLE: &str = "x86_64-unknown-none";

/// Whatever the kernel. A module is linked like a relocatable file: no GOT, but calls into the kernel look like calls
/// through a PLT, or the loader of modules does not know their relocations. Interrupts use the stack of whom they
/// interrupt, hence no red zone; objtool makes the tables to unwind by.
const ALWAYS: &[&str] = &[
    "-Copt-level=2",
    "-Cpanic=abort",
    "-Ccodegen-units=1",
    "-Crelocation-model=static",
    "-Ccode-model=kernel",
    "-Cno-redzone=y",
    "-Cforce-unwind-tables=n",
    "-Csymbol-mangling-version=v0",
    "-Zplt=yes",
    "-Zdirect-access-external-data=yes",
];

/// Flags of the compiler for one kind of kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags(Vec<String>);

impl Flags {
    /// The flags for a kernel with this configuration (the text of its `.config`), as this compiler spells them.
    pub fn for_config(config: &str, toolchain: &Toolchain) -> Result<Self> {
        Self::spelled(config, |flag| toolchain.accepts(flag))
    }

    fn spelled(config: &str, accepts: impl Fn(&str) -> bool) -> Result<Self> {
        let value = |name: &str| {
            config.lines().find_map(|line| line.strip_prefix("CONFIG_")?.strip_prefix(name)?.strip_prefix('='))
        };
        let has = |name| value(name) == Some("y");
        if !has("X86_64") {
            return Err(Error::Kernel(
                "the kernel is not for x86-64, the only architecture so far; take another".into(),
            ));
        }
        if has("CFI") || has("CFI_CLANG") {
            return Err(Error::Kernel(
                "the kernel checks the type of every indirect call (CONFIG_CFI), which Ekiden's modules do not support \
                 yet; take a kernel without it"
                    .into(),
            ));
        }
        let mut flags: Vec<String> = ALWAYS.iter().map(ToString::to_string).collect();
        let mut add = |flag: &str| flags.push(flag.to_owned());
        let either = |now: &'static str, before: &'static str| if accepts(now) { now } else { before };
        if has("X86_KERNEL_IBT") {
            add("-Zcf-protection=branch");
        }
        // The options had other names before 6.9.
        if has("MITIGATION_RETPOLINE") || has("RETPOLINE") {
            add(either(
                "-Zretpoline-external-thunk",
                "-Ctarget-feature=+retpoline-external-thunk,+retpoline-indirect-branches,+retpoline-indirect-calls",
            ));
        }
        if has("MITIGATION_RETPOLINE") || has("RETPOLINE") || has("X86_KERNEL_IBT") {
            add(either("-Cjump-tables=no", "-Zno-jump-tables"));
        }
        if has("MITIGATION_RETHUNK") || has("RETHUNK") {
            add("-Zfunction-return=thunk-extern");
        }
        if has("MITIGATION_SLS") || has("SLS") {
            add(either("-Zharden-sls=all", "-Ctarget-feature=+harden-sls-ijmp,+harden-sls-ret"));
        }
        if has("CALL_PADDING") {
            let bytes = value("FUNCTION_PADDING_BYTES").unwrap_or("16");
            add(&format!("-Zpatchable-function-entry={bytes},{bytes}"));
        }
        if has("FRAME_POINTER") {
            add("-Cforce-frame-pointers=y");
        }
        Ok(Self(flags))
    }

    /// One argument each.
    pub fn as_args(&self) -> &[String] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str = "CONFIG_X86_64=y\nCONFIG_X86_KERNEL_IBT=y\nCONFIG_MITIGATION_RETPOLINE=y\n\
                          CONFIG_MITIGATION_RETHUNK=y\nCONFIG_MITIGATION_SLS=y\nCONFIG_CALL_PADDING=y\n\
                          CONFIG_FUNCTION_PADDING_BYTES=16\n# CONFIG_FRAME_POINTER is not set\n";

    fn check(config: &str, new: bool, expected: expect_test::Expect) {
        let flags = match Flags::spelled(config, |_| new) {
            Ok(flags) => flags.0[ALWAYS.len()..].join("\n"),
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&flags);
    }

    #[test]
    fn a_kernel_with_every_mitigation_gets_the_flags_of_its_own_rust_code() {
        check(
            DEBIAN,
            true,
            expect_test::expect![[r#"
                -Zcf-protection=branch
                -Zretpoline-external-thunk
                -Cjump-tables=no
                -Zfunction-return=thunk-extern
                -Zharden-sls=all
                -Zpatchable-function-entry=16,16"#]],
        );
    }

    #[test]
    fn an_older_compiler_gets_the_older_spelling() {
        check(
            DEBIAN,
            false,
            expect_test::expect![[r#"
                -Zcf-protection=branch
                -Ctarget-feature=+retpoline-external-thunk,+retpoline-indirect-branches,+retpoline-indirect-calls
                -Zno-jump-tables
                -Zfunction-return=thunk-extern
                -Ctarget-feature=+harden-sls-ijmp,+harden-sls-ret
                -Zpatchable-function-entry=16,16"#]],
        );
    }

    #[test]
    fn a_kernel_without_mitigations_gets_none() {
        check("CONFIG_X86_64=y\nCONFIG_FRAME_POINTER=y\n", true, expect_test::expect!["-Cforce-frame-pointers=y"]);
    }

    #[test]
    fn kernels_that_modules_cannot_be_built_for_are_refused() {
        check(
            "CONFIG_X86_64=y\nCONFIG_CFI=y\n",
            true,
            expect_test::expect![
                "the kernel checks the type of every indirect call (CONFIG_CFI), which Ekiden's modules do not support yet; take a kernel without it"
            ],
        );
        check(
            "CONFIG_ARM64=y\n",
            true,
            expect_test::expect!["the kernel is not for x86-64, the only architecture so far; take another"],
        );
    }
}
