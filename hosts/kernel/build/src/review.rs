//! What a policy brings along that is not Ekiden's: crates with unsafe code in what is compiled, and code that runs while it is built.

use crate::{Error, Policy, Result, find_unsafe};
use cargo_metadata::{DependencyKind, Metadata, Node, Package, PackageId, TargetKind, camino::Utf8PathBuf};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::{Path, PathBuf},
};

/// What the user who builds policies allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The names of dependencies that may have unsafe code.
    pub allow_unsafe: Vec<String>,
    /// Code of the policy's author may run as root while the policy is built.
    pub as_root: bool,
}

impl Trust {
    /// The packages that may be unsafe. The policy itself never is.
    pub(crate) fn names_besides(&self, policy: &Policy) -> Vec<String> {
        // The compiler says `_` where cargo may say `-`.
        let both = self.allow_unsafe.iter().flat_map(|name| [name.replace('_', "-"), name.replace('-', "_")]);
        both.filter(|name| *name != policy.package).collect()
    }
}

/// A crate with unsafe code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsafeCrate {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How many places are unsafe.
    pub places: usize,
    /// File and line of the first.
    pub first: String,
}

impl fmt::Display for UnsafeCrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, places, first } = self;
        let times = if *places == 1 { "one place".to_owned() } else { format!("{places} places, first") };
        write!(f, "`{name}` {version}: {times} at {first}; to allow it: --allow-unsafe {name}")
    }
}

/// What cargo made of a crate.
pub(crate) struct Artifact {
    pub(crate) package: PackageId,
    pub(crate) files: Vec<Utf8PathBuf>,
}

/// A policy's crates, and the programs that run while they are built.
pub(crate) struct Review {
    /// The directories of crates that may have unsafe code, as they are Ekiden's.
    pub(crate) framework: Vec<PathBuf>,
    /// The policy's own dependencies whose code becomes part of the module, or writes it.
    compiled: BTreeMap<PackageId, Package>,
    /// What runs while they are built.
    runs: Vec<String>,
}

impl Review {
    /// Walks from policies through what they depend on, without Ekiden's crates and what those depend on. `metadata` is of the workspace in
    /// which `glue` names the policies and the framework.
    pub(crate) fn of(metadata: &Metadata, glue: &str, policies: &[Policy]) -> Self {
        let mut review = Self { framework: Vec::new(), compiled: BTreeMap::new(), runs: Vec::new() };
        let packages: BTreeMap<&PackageId, &Package> = metadata.packages.iter().map(|one| (&one.id, one)).collect();
        let nodes: BTreeMap<&PackageId, &Node> =
            metadata.resolve.iter().flat_map(|resolve| &resolve.nodes).map(|node| (&node.id, node)).collect();
        let is_policy = |id: &PackageId| {
            let directory = packages.get(id).and_then(|package| package.manifest_path.parent());
            directory.is_some_and(|directory| policies.iter().any(|policy| directory == policy.directory))
        };
        let top =
            nodes.values().find(|node| packages.get(&node.id).is_some_and(|package| package.name.as_str() == glue));
        let mut framework = BTreeSet::new();
        let mut todo: Vec<&PackageId> =
            top.iter().flat_map(|top| &top.deps).map(|dep| &dep.pkg).filter(|id| !is_policy(id)).collect();
        while let Some(id) = todo.pop() {
            if framework.insert(id) {
                todo.extend(nodes.get(id).iter().flat_map(|node| &node.deps).map(|dep| &dep.pkg));
            }
        }
        review.framework =
            framework.iter().filter_map(|id| packages.get(id)).filter_map(|one| directory(one)).collect();
        let mut seen = BTreeSet::new();
        let own = top.iter().flat_map(|top| &top.deps).map(|dep| &dep.pkg).filter(|id| is_policy(id));
        let mut todo: Vec<(&PackageId, bool)> = own.map(|id| (id, false)).collect();
        while let Some((id, on_host)) = todo.pop() {
            let (Some(package), Some(node)) = (packages.get(id), nodes.get(id)) else { continue };
            if framework.contains(id) || !seen.insert((id, on_host)) {
                continue;
            }
            let has = |kind| package.targets.iter().any(|target| target.kind.contains(&kind));
            let name = format!("`{}` {}", package.name, package.version);
            if has(TargetKind::CustomBuild) {
                review.runs.push(format!("the build script of {name}"));
            }
            let is_macro = has(TargetKind::ProcMacro);
            if is_macro {
                review.runs.push(format!("the procedural macros of {name}"));
            }
            if !on_host && !is_policy(id) {
                review.compiled.insert(id.clone(), (*package).clone());
            }
            for dep in &node.deps {
                let is = |kind| dep.dep_kinds.iter().any(|info| info.kind == kind);
                // What a macro is made of runs where it is compiled.
                if is(DependencyKind::Normal) {
                    todo.push((&dep.pkg, on_host || is_macro));
                }
                if is(DependencyKind::Build) {
                    todo.push((&dep.pkg, true));
                }
            }
        }
        review.runs.sort();
        review.runs.dedup();
        review
    }

    /// The policy's own dependencies that cargo has not fetched, of these names: it has the compiler lint no others.
    pub(crate) fn not_fetched(&self, names: &[String]) -> Vec<String> {
        let here = self.compiled.values().filter(|package| package.source.is_none());
        here.map(|package| package.name.to_string()).filter(|name| names.contains(name)).collect()
    }

    /// Refuses to run code of a policy's author as root.
    pub(crate) fn may_run(&self, policy: &Policy, trust: &Trust, is_root: bool) -> Result<()> {
        if self.runs.is_empty() || !is_root || trust.as_root {
            return Ok(());
        }
        Err(Error::RunsAsRoot { policy: policy.name.clone(), runs: self.runs.join(", ") })
    }

    /// Refuses dependencies with unsafe code, of all that was compiled.
    pub(crate) fn is_safe(&self, policy: &Policy, artifacts: &[Artifact], trust: &Trust) -> Result<()> {
        let allowed = trust.names_besides(policy);
        let mut found: BTreeMap<&PackageId, UnsafeCrate> = BTreeMap::new();
        for artifact in artifacts {
            let Some(package) = self.compiled.get(&artifact.package) else { continue };
            if allowed.iter().any(|name| package.name.as_str() == name) {
                continue;
            }
            for source in artifact.files.iter().find_map(|file| sources(file.as_std_path())).unwrap_or_default() {
                let source = directory(package).unwrap_or_default().join(source);
                let Some((places, line)) = look(&source) else { continue };
                let first = format!("{}:{line}", source.display());
                let (name, version) = (package.name.to_string(), package.version.to_string());
                found.entry(&artifact.package).or_insert(UnsafeCrate { name, version, places: 0, first }).places +=
                    places;
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        Err(Error::Unsafe { policy: policy.name.clone(), crates: found.into_values().collect() })
    }
}

fn directory(package: &Package) -> Option<PathBuf> {
    package.manifest_path.parent().map(|path| path.as_std_path().to_owned())
}

/// How many places are unsafe in a file that was compiled, and the line of the first.
fn look(file: &Path) -> Option<(usize, usize)> {
    let bytes = fs::read(file).ok()?;
    let found = std::str::from_utf8(&bytes).map(find_unsafe);
    match found {
        Ok(Ok((count, first))) => first.map(|line| (count.places(), line)),
        // Rust that cannot be looked through may be anything. Other files are texts and pictures.
        _ => file.extension().is_some_and(|extension| extension == "rs").then_some((1, 1)),
    }
}

/// The files that the compiler has read for a library, as it notes beside it.
fn sources(library: &Path) -> Option<Vec<PathBuf>> {
    let name = library.file_stem()?.to_str()?.strip_prefix("lib")?;
    let text = fs::read_to_string(library.with_file_name(format!("{name}.d"))).ok()?;
    // A line without a space before its colon for each of them.
    let lines = text.lines().filter_map(|line| line.strip_suffix(':'));
    Some(lines.map(|line| PathBuf::from(line.replace("\\ ", " "))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_library_are_those_that_the_compiler_read() {
        let place = tempfile::tempdir().unwrap();
        let notes =
            "/t/libx-1.rlib: src/lib.rs /o/with\\ space.rs\n\nsrc/lib.rs:\n/o/with\\ space.rs:\n\n# env-dep:X\n";
        fs::write(place.path().join("x-1.d"), notes).unwrap();
        let found = sources(&place.path().join("libx-1.rlib")).unwrap();
        assert_eq!(found, [Path::new("src/lib.rs"), Path::new("/o/with space.rs")]);
        assert_eq!(sources(&place.path().join("liby-1.rlib")), None);
    }

    #[test]
    fn rust_that_cannot_be_looked_through_counts_as_unsafe() {
        let place = tempfile::tempdir().unwrap();
        let look_at = |name: &str, text: &str| {
            fs::write(place.path().join(name), text).unwrap();
            look(&place.path().join(name))
        };
        assert_eq!(look_at("a.rs", "fn f() {\n unsafe {} }"), Some((1, 2)));
        assert_eq!(look_at("b.rs", "fn f() {"), Some((1, 1)));
        assert_eq!(look_at("c.txt", "it's `unsafe {`"), None);
        assert_eq!(look_at("d.rs", "fn f() {}"), None);
    }
}
