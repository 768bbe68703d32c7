//! A script that cargo runs instead of the compiler, to compile crates that are not Ekiden's without unsafe code. A flag for all of them would
//! be one for Ekiden's own crates, too, and their sources could say otherwise.

use crate::{Result, cargo::Cargo, files, flags::TRIPLE};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

/// What nothing in a source changes: unsafe code is an error, and so are unstable features, of which some are unsafe without the word.
const FLAGS: &str = "-F unsafe_code -Zallow-features=";

/// The script. Crates in `framework`, which may be unsafe, are compiled as they are, and so is the glue; those of a registry are not linted
/// (`review.rs` looks at them), and what runs on this machine is no part of a module.
pub(crate) fn without_unsafe(glue: &Path, framework: &[PathBuf], allowed: &[String]) -> String {
    let mut directories: Vec<String> =
        framework.iter().map(|directory| quoted(&directory.display().to_string())).collect();
    directories.sort();
    directories.push(format!("{}/*", quoted(&glue.display().to_string())));
    let names: Vec<String> = allowed.iter().map(|name| quoted(name)).collect();
    let names = if names.is_empty() {
        String::new()
    } else {
        format!("case $CARGO_PKG_NAME in {}) exec \"$@\" ;; esac\n", names.join("|"))
    };
    format!(
        "#!/bin/sh\n# Compiles crates that are not Ekiden's without unsafe code.\n\
         case \" $* \" in *' --target {TRIPLE} '*) ;; *) exec \"$@\" ;; esac\n\
         case \" $* \" in *' --cap-lints '*) exec \"$@\" ;; esac\n\
         case ${{CARGO_MANIFEST_DIR:-}} in ''|{}) exec \"$@\" ;; esac\n{names}exec \"$@\" {FLAGS}\n",
        directories.join("|")
    )
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Cargo<'_> {
    /// Runs cargo with this wrapper. Cargo does not look at what a wrapper says, so what is made with another script is elsewhere.
    pub(crate) fn wrapped(self, place: &Path, script: &str) -> Result<Self> {
        let mut hasher = DefaultHasher::new();
        script.hash(&mut hasher);
        let name = format!("{:016x}", hasher.finish());
        let wrapper = place.join("wrappers").join(&name);
        files::write_program(&wrapper, script.as_bytes())?;
        let mut target_dir = self.target_dir.into_os_string();
        target_dir.push(format!("-{name}"));
        Ok(Self { target_dir: target_dir.into(), wrapper: Some(wrapper), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_crates_that_are_compiled_for_the_kernel_and_not_ekidens_get_the_flags() {
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("wrapper");
        let text = without_unsafe(Path::new("/p/glue"), &["/e/crates/it's".into()], &["trusted".into()]);
        files::write_program(&script, text.as_bytes()).unwrap();
        let flags = |directory: &str, name: &str, args: &str| {
            let mut wrapper = Command::new(&script);
            wrapper.arg("echo").args(args.split(' ')).env("CARGO_MANIFEST_DIR", directory).env("CARGO_PKG_NAME", name);
            String::from_utf8(wrapper.output().unwrap().stdout).unwrap().contains("-F unsafe_code")
        };
        let kernel = "--crate-name x --target x86_64-unknown-none";
        assert!(flags("/p", "mine", kernel));
        assert!(flags("/e/crates/policies", "mine", kernel));
        assert!(!flags("/p", "mine", "--crate-name build_script_build"));
        assert!(!flags("/r/registry/x", "x", &format!("{kernel} --cap-lints allow")));
        assert!(!flags("/e/crates/it's", "ekiden", kernel));
        assert!(!flags("/p/glue/mine", "ekiden-policy-mine", kernel));
        assert!(!flags("/p/dep", "trusted", kernel));
    }
}
