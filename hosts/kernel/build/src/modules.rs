//! Makes `ekiden.ko` and the modules of policies for a kernel.

use crate::{
    Checkout, Error, Flags, Linker, Policy, Progress, Project, Result, Sysroot, Target, Toolchain, Trust, cargo::Cargo,
    command, error::Context, files, flags::TRIPLE, kbuild::Unit, review::Review, sysroot::remap, wrapper,
};
use ekiden_vm::{Cache, Lock};
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

/// Makes modules. Everything that it makes is kept, and made again only when something under it has changed.
#[derive(Clone, Debug)]
pub struct Builder {
    cache: Cache,
    checkout: Checkout,
    toolchain: Toolchain,
    linker: Linker,
    fixed: bool,
    trust: Trust,
}

/// The modules of a project for one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modules {
    /// The directory with all of them, and nothing else. It stays the same from build to build.
    pub directory: PathBuf,
    /// `ekiden.ko`, which has to be loaded first.
    pub core: PathBuf,
    /// A policy's name and the file of its module.
    pub policies: Vec<(String, PathBuf)>,
    /// The names of the modules that were not up to date.
    pub rebuilt: Vec<String>,
}

/// `ekiden.ko` for one kernel, and how the modules of policies for it are made.
#[derive(Clone, Debug)]
pub struct Core {
    module: PathBuf,
    rebuilt: bool,
    target: Target,
    flags: Flags,
    sysroot: Sysroot,
}

/// What a set of modules for one kernel has in common.
struct Build<'a> {
    builder: &'a Builder,
    target: &'a Target,
    flags: &'a Flags,
    sysroot: &'a Sysroot,
}

impl Builder {
    /// Finds compiler and linker.
    pub fn new(cache: &Cache, progress: Progress<'_>) -> Result<Self> {
        Self::with(cache, Checkout::find()?, Toolchain::find(progress)?)
    }

    /// A builder with a compiler and a checkout that the caller chose.
    pub fn with(cache: &Cache, checkout: Checkout, toolchain: Toolchain) -> Result<Self> {
        Ok(Self {
            cache: cache.clone(),
            checkout,
            toolchain,
            linker: Linker::find()?,
            fixed: false,
            trust: Trust::default(),
        })
    }

    /// Leaves out what lets one policy take over from another, to measure what that costs. Modules without it have a directory
    /// of its own.
    #[must_use]
    pub fn fixed(self) -> Self {
        Self { fixed: true, ..self }
    }

    /// Allows what is refused otherwise.
    #[must_use]
    pub fn trusting(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// The directory under `target` for what is made of the workspace in `root`. In a `target` that several share
    /// (CARGO_TARGET_DIR), each has one of its own: crates of two checkouts have the same names, and would be taken
    /// for each other.
    fn place(&self, target: &Path, root: &Path) -> PathBuf {
        let place = target.join(if self.fixed { "kernel-fixed" } else { "kernel" });
        if target.starts_with(root) {
            return place;
        }
        let mut hasher = DefaultHasher::new();
        (root, self.checkout.root()).hash(&mut hasher);
        place.join(format!("{:016x}", hasher.finish()))
    }

    /// The compiler in use.
    pub fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }

    /// Makes `ekiden.ko` and the modules of some of a project's policies for a kernel, as far as they are not up to date.
    pub fn build(
        &self,
        target: &Target,
        project: &Project,
        policies: &[Policy],
        progress: Progress<'_>,
    ) -> Result<Modules> {
        let core = self.core(target, progress)?;
        self.policies(&core, project, policies, progress)
    }

    /// Makes `ekiden.ko` for a kernel, unless it is up to date, which takes a second or two to see.
    pub fn core(&self, target: &Target, progress: Progress<'_>) -> Result<Core> {
        let flags = Flags::for_config(&target.config()?, &self.toolchain)?;
        let sysroot = Sysroot::prepare(&self.cache, &self.checkout, &self.toolchain, &flags, progress)?;
        let build = Build { builder: self, target, flags: &flags, sysroot: &sysroot };
        let (module, rebuilt) = build.core(progress)?;
        Ok(Core { module, rebuilt, target: target.clone(), flags, sysroot })
    }

    /// Makes the modules of some of a project's policies, as far as they are not up to date, for the kernel of `core`. It is not looked at again.
    pub fn policies(
        &self,
        core: &Core,
        project: &Project,
        policies: &[Policy],
        progress: Progress<'_>,
    ) -> Result<Modules> {
        let build = Build { builder: self, target: &core.target, flags: &core.flags, sysroot: &core.sysroot };
        build.policies(core, project, policies, progress)
    }
}

impl Build<'_> {
    /// Makes `ekiden.ko`. It is shared by all projects, and knows none of them.
    fn core(&self, progress: Progress<'_>) -> Result<(PathBuf, bool)> {
        let checkout = &self.builder.checkout;
        let place = self.builder.place(&checkout.target_dir(), checkout.root());
        let _lock = lock(&place, progress)?;
        let features: &[&str] = if self.builder.fixed { &["fixed"] } else { &[] };
        let cargo = Cargo { features, ..self.cargo(&place, None)? };
        let archive = cargo.build(&checkout.kernel(), "ekiden-core", "the engine", progress)?.library;
        let mut sources = self.sources(&["hosts/kernel/module", "hosts/kernel/include"])?;
        sources.retain(|(_, name)| !name.starts_with("Kbuild") && !name.starts_with("policy."));
        sources.push((checkout.kernel().join("module/Kbuild.core"), "Kbuild".into()));
        let unit = Unit {
            name: "ekiden".into(),
            directory: place.join(self.target.release()).join("core"),
            sources,
            archive: &archive,
            changed: None,
            keep: "ekiden_rs_",
            make_args: Vec::new(),
        };
        unit.make(&self.builder.cache, self.target, &self.builder.linker, progress)
    }

    fn policies(&self, core: &Core, project: &Project, policies: &[Policy], progress: Progress<'_>) -> Result<Modules> {
        let place = self.builder.place(project.target_dir(), project.root());
        let _lock = lock(&place, progress)?;
        let place_of_kernel = place.join(self.target.release());
        let directory = place_of_kernel.join("modules");
        let mut modules = Modules {
            core: directory.join("ekiden.ko"),
            policies: Vec::new(),
            rebuilt: core.rebuilt.then(|| "ekiden".to_owned()).into_iter().collect(),
            directory,
        };
        files::copy(&core.module, &modules.core)?;
        forget_others(&modules.directory, project)?;
        let glue = place.join("glue");
        self.write_glue(&glue, project)?;
        let all = match policies {
            [only] => what(only),
            _ => "the policies".to_owned(),
        };
        // One look at the whole workspace serves all policies.
        let metadata = self.cargo(&place, Some(project))?.metadata(&glue, &all, progress)?;
        for policy in policies {
            let (package, what) = (glue_package(policy), what(policy));
            let mut cargo = self.cargo(&place, Some(project))?;
            let review = Review::of(&metadata, &package, std::slice::from_ref(policy));
            let trust = &self.builder.trust;
            review.may_run(policy, trust, is_root() && !self.is_own(project))?;
            // What is made with another script is compiled anew: other names would make no difference.
            let allowed = review.not_fetched(&trust.names_besides(policy));
            let script = wrapper::without_unsafe(&glue, &review.framework, &allowed);
            cargo = cargo.wrapped(&place, &script)?;
            let assembly = cargo.target_dir.join(format!("{package}.s"));
            cargo.assembly = Some(assembly.clone());
            let made = cargo.build(&glue, &package, &what, progress)?;
            review.is_safe(policy, &made.parts, trust)?;
            let archive = made.library;
            let object = self.assemble(&assembly, policy)?;
            let mut sources = self.sources(&["hosts/kernel/include"])?;
            for name in ["policy.c", "policy.h", "interface.h"] {
                sources.push((self.builder.checkout.kernel().join("module").join(name), name.into()));
            }
            sources.push((self.builder.checkout.kernel().join("module/Kbuild.policy"), "Kbuild".into()));
            // The symbols of ekiden.ko, which the build system checks the policy's half against.
            sources.push((core.module.with_file_name("Module.symvers"), "core.symvers".into()));
            let unit_directory = place_of_kernel.join("policies").join(&policy.name);
            let unit = Unit {
                name: policy.module_name(),
                sources,
                archive: &archive,
                changed: Some(&object),
                keep: "ekiden_policy_table",
                make_args: vec![
                    format!("EKIDEN_POLICY={}", policy.symbol()),
                    format!("KBUILD_EXTRA_SYMBOLS={}", unit_directory.join("core.symvers").display()),
                ],
                directory: unit_directory,
            };
            let (made, rebuilt) = unit.make(&self.builder.cache, self.target, &self.builder.linker, progress)?;
            let module = modules.directory.join(format!("{}.ko", unit.name));
            files::copy(&made, &module)?;
            if rebuilt {
                modules.rebuilt.push(unit.name);
            }
            modules.policies.push((policy.name.clone(), module));
        }
        Ok(modules)
    }

    fn cargo(&self, place: &Path, project: Option<&Project>) -> Result<Cargo<'_>> {
        // The last that fits counts, and a project may be inside the checkout.
        let mut rustflags = self.flags.as_args().to_vec();
        rustflags.push(remap(self.builder.checkout.root(), ""));
        rustflags.extend(cargo_home().map(|home| remap(&home.join("registry/src"), "registry")));
        if let Some(project) = project.filter(|project| project.root() != self.builder.checkout.root()) {
            rustflags.push(remap(project.root(), &called(project.root())));
        }
        // One directory per set of flags: cargo would build everything anew whenever they change.
        let mut hasher = DefaultHasher::new();
        (self.sysroot.directory(), &rustflags).hash(&mut hasher);
        let name = format!("{}-{:016x}", self.builder.toolchain.release(), hasher.finish());
        Ok(Cargo {
            toolchain: &self.builder.toolchain,
            sysroot: self.sysroot,
            target_dir: place.join("rust").join(name),
            rustflags,
            settings: self.builder.checkout.kernel_settings()?,
            features: &[],
            assembly: None,
            wrapper: None,
            // As root, not where settings of another user may name programs.
            runs_in: match project.filter(|project| !is_root() || self.is_own(project)) {
                Some(_) => place.to_owned(),
                None => self.builder.checkout.kernel(),
            },
        })
    }

    /// Whether it is Ekiden's.
    fn is_own(&self, project: &Project) -> bool {
        project.root() == self.builder.checkout.root()
    }

    /// Puts fuel and limits into a program, and has the compiler assemble it. The object's file.
    fn assemble(&self, assembly: &Path, policy: &Policy) -> Result<PathBuf> {
        let text = fs::read_to_string(assembly).context("read", assembly)?;
        if let Some(unfit) = ekiden_fuel::unfit(&text) {
            return Err(Error::Unfit { policy: policy.name.clone(), unfit });
        }
        let (limited, object) = (assembly.with_extension("limited.s"), assembly.with_extension("limited.o"));
        let with_fuel =
            ekiden_fuel::limit(&text).map_err(|source| Error::Fuel { assembly: assembly.to_owned(), source })?;
        if !files::write(&limited, with_fuel.as_bytes())? && object.is_file() {
            return Ok(object);
        }
        let source = assembly.with_extension("limited.rs");
        let name = limited.file_name().unwrap_or_default().to_string_lossy();
        let whole = format!("#![no_std]\ncore::arch::global_asm!(include_str!({name:?}), options(att_syntax, raw));\n");
        files::write(&source, whole.as_bytes())?;
        let mut rustc = self.builder.toolchain.command();
        rustc.args(self.flags.as_args()).args(["--target", TRIPLE, "--crate-type", "lib", "--crate-name", "limited"]);
        rustc.arg("--sysroot").arg(self.sysroot.directory()).arg("--emit=obj").arg("-o").arg(&object).arg(&source);
        command::output(&mut rustc)?;
        Ok(object)
    }

    /// All files in directories of the checkout.
    fn sources(&self, directories: &[&str]) -> Result<Vec<(PathBuf, String)>> {
        let mut sources = Vec::new();
        for directory in directories {
            let directory = self.builder.checkout.root().join(directory);
            for entry in fs::read_dir(&directory).context("list", &directory)? {
                let path = entry.context("list", &directory)?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.is_file() && !name.starts_with('.') {
                    sources.push((path, name));
                }
            }
        }
        sources.sort();
        Ok(sources)
    }

    /// Writes a workspace with one crate per policy, whose whole content is the policy.
    fn write_glue(&self, glue: &Path, project: &Project) -> Result<()> {
        let profile = self.builder.checkout.kernel_profile()?;
        let members: Vec<String> = project.policies().iter().map(|policy| format!("\"{}\"", policy.name)).collect();
        let workspace = format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n\n{profile}", members.join(", "));
        files::write(&glue.join("Cargo.toml"), workspace.as_bytes())?;
        for policy in project.policies() {
            let directory = glue.join(&policy.name);
            files::write(&directory.join("Cargo.toml"), self.glue_manifest(policy).as_bytes())?;
            files::write(&directory.join("src/lib.rs"), glue_source(policy).as_bytes())?;
        }
        // The versions that the project was tested with. Cargo leaves out what is not needed, so the copy is compared with what was
        // copied, not with what became of it.
        let candidates = [project.root().join("Cargo.lock"), self.builder.checkout.root().join("Cargo.lock")];
        if let Some(lock) = candidates.iter().find(|lock| lock.is_file()) {
            if files::copy(lock, &glue.join("Cargo.lock.of-project"))? || !glue.join("Cargo.lock").exists() {
                files::copy(lock, &glue.join("Cargo.lock"))?;
            }
        }
        Ok(())
    }

    fn glue_manifest(&self, policy: &Policy) -> String {
        let package = glue_package(policy);
        let checkout = self.builder.checkout.root().display();
        let (policy_package, directory) = (&policy.package, policy.directory.display());
        format!(
            r#"[package]
name = "{package}"
version = "0.1.0"
edition = "2024"
publish = false

[lib]
crate-type = ["staticlib"]
test = false
doctest = false

[dependencies]
ekiden = {{ path = "{checkout}/framework/ekiden" }}
ekiden-kernel-policy = {{ path = "{checkout}/hosts/kernel/policy" }}
{policy_package} = {{ path = "{directory}" }}
"#
        )
    }
}

/// One process at a time makes something in a directory; the others say which one they wait for.
pub(crate) fn lock(place: &Path, progress: Progress<'_>) -> Result<Lock> {
    fs::create_dir_all(place).context("create", place)?;
    Ok(Lock::wait(&place.join(".lock"), progress)?)
}

/// Removes the modules of policies that the project no longer has.
fn forget_others(directory: &Path, project: &Project) -> Result<()> {
    let known: Vec<String> = project.policies().iter().map(|policy| format!("{}.ko", policy.module_name())).collect();
    for entry in fs::read_dir(directory).context("list", directory)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("ekiden_") && !known.contains(&name) {
            fs::remove_file(entry.path()).context("remove", entry.path())?;
        }
    }
    Ok(())
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Where cargo keeps crates.
fn cargo_home() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("CARGO_HOME").or_else(|| variable("HOME").map(|home| home.join(".cargo")))
}

/// What the directory of a project is called in messages: by its own name, as `src/lib.rs` alone may be any project's.
fn called(root: &Path) -> String {
    let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Rust's library and the crates of others are called so.
    if ["library", "registry"].contains(&name.as_str()) { String::new() } else { name }
}

/// What people call it.
fn what(policy: &Policy) -> String {
    format!("policy `{}`", policy.name)
}

fn glue_package(policy: &Policy) -> String {
    format!("ekiden-policy-{}", policy.name)
}

fn glue_source(policy: &Policy) -> String {
    let Policy { path, name, .. } = policy;
    format!(
        r#"#![no_std]
ekiden_kernel_policy::module!({path});

const _: () = assert!(
    same(<{path} as ekiden::Scheduler>::NAME.as_bytes(), b"{name}"),
    "the policy's NAME must be its type's name in lower case with dashes, here `{name}`: its module is called after it"
);

const fn same(a: &[u8], b: &[u8]) -> bool {{
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {{
        i += 1;
    }}
    i == a.len() && i == b.len()
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_a_project_are_told_with_the_name_of_its_directory() {
        assert_eq!(called(Path::new("/home/me/my-policy")), "my-policy");
        assert_eq!(called(Path::new("/home/me/library")), "");
    }

    #[test]
    fn checkouts_that_share_a_target_directory_do_not_share_what_is_made_in_it() {
        let cache = Cache::at(tempfile::tempdir().unwrap().path()).unwrap();
        let Ok(builder) = Builder::new(&cache, &mut |_| {}) else { panic!("compiler or linker is missing") };
        let place = |root: &str| builder.place(Path::new("/shared"), Path::new(root));
        assert_ne!(place("/a/ekiden"), place("/b/ekiden"));
        assert_eq!(place("/a/ekiden"), place("/a/ekiden"));
        assert_eq!(builder.place(Path::new("/a/target"), Path::new("/a")), Path::new("/a/target/kernel"));
    }
}
