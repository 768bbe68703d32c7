//! Finds stock Debian kernels on the mirror or in the cache, and fetches them.

use crate::{
    Cache, Error, Kernel, Result, Scratch, Verdict, Version,
    apt::{Apt, KERNELS, Package, Progress},
    error::Context,
    preflight, process,
};
use std::{collections::HashMap, fs, path::Path};

/// Which kernels of Debian's: they are small, and made for virtual machines.
const FLAVOUR: &str = "cloud-amd64";

/// A kernel that the mirror has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What `uname -r` will say.
    pub release: String,
    /// The suite that it is in.
    pub suite: String,
    /// Headers and kbuild's programs, as `name=version`; the first has the BTF.
    headers: Vec<String>,
    /// Image and modules.
    image: Vec<String>,
}

impl Candidate {
    /// Whether `wanted` means this one: `7.2.13` is a beginning of `7.2.13+deb14-cloud-amd64`.
    fn is(&self, wanted: &str) -> bool {
        is_release(&self.release, wanted)
    }
}

fn is_release(release: &str, wanted: &str) -> bool {
    release.strip_prefix(wanted).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// All kernels that the mirror has with their headers: those of the preferred suite first, in each the newest first.
pub fn candidates(cache: &Cache, progress: Progress<'_>) -> Result<Vec<Candidate>> {
    let apt = Apt::new(cache, &KERNELS)?;
    apt.update(cache, progress)?;
    let pattern = "^linux-(base|headers|kbuild|binary|binary-unsigned|image|modules)-[0-9].*";
    Ok(assemble(&apt.packages(pattern)?))
}

/// Puts the packages of each kernel together; one without all it needs is left out.
fn assemble(packages: &[Package]) -> Vec<Candidate> {
    let versions: HashMap<(&str, &str), &str> = packages
        .iter()
        .map(|package| ((package.suite.as_str(), package.name.as_str()), package.version.as_str()))
        .collect();
    let mut candidates = Vec::new();
    for &suite in KERNELS.suites {
        let find = |name: String| {
            let version = versions.get(&(suite, name.as_str()))?;
            Some(format!("{name}={version}"))
        };
        let mut of_suite: Vec<Candidate> = packages
            .iter()
            .filter(|package| package.suite == suite)
            .filter_map(|package| {
                let release = package.name.strip_prefix("linux-headers-")?;
                let base = release.strip_suffix(FLAVOUR)?.strip_suffix('-')?;
                let headers = [
                    find(package.name.clone())?,
                    find(format!("linux-headers-{base}-common"))?,
                    find(format!("linux-kbuild-{base}"))?,
                ];
                let image = [
                    format!("linux-binary-unsigned-{release}"),
                    format!("linux-binary-{release}"),
                    format!("linux-image-{release}-unsigned"),
                    format!("linux-image-{release}"),
                ];
                let image = image.into_iter().find_map(find)?;
                // Before they had packages of their own, the modules and their lists came with the image.
                let modules = find(format!("linux-modules-{release}"));
                let lists = find(format!("linux-base-{release}"));
                Some(Candidate {
                    release: release.to_owned(),
                    suite: suite.to_owned(),
                    headers: headers.into(),
                    image: [image].into_iter().chain(modules).chain(lists).collect(),
                })
            })
            .collect();
        of_suite.sort_by_key(|candidate| std::cmp::Reverse(Version::of_release(&candidate.release)));
        candidates.extend(of_suite);
    }
    candidates
}

/// The kernels in the cache, the newest first.
pub fn cached(cache: &Cache) -> Result<Vec<Kernel>> {
    let directory = cache.directory("kernels")?;
    let mut kernels: Vec<Kernel> = fs::read_dir(&directory)
        .context("list", &directory)?
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| Kernel::unpacked_in(&entry.path()))
        .collect();
    kernels.sort_by_key(|kernel| std::cmp::Reverse(Version::of_release(kernel.release())));
    Ok(kernels)
}

/// Fetches one kernel whatever the pre-flight says of it; `wanted` is a release or a beginning of one, such as `7.2.13`.
pub fn fetch(cache: &Cache, wanted: &str, progress: Progress<'_>) -> Result<Kernel> {
    if let Some(kernel) = cached(cache)?.into_iter().find(|kernel| is_release(kernel.release(), wanted)) {
        return Ok(kernel);
    }
    let candidates = candidates(cache, progress)?;
    let Some(candidate) = candidates.iter().find(|candidate| candidate.is(wanted)) else {
        let names: Vec<&str> = candidates.iter().map(|candidate| candidate.release.as_str()).collect();
        return Err(Error::NoKernel { reasons: format!("the mirror has no {wanted}, only {}", names.join(", ")) });
    };
    unpack(cache, candidate, progress)
}

/// Fetches the newest kernel that passes the pre-flight, or takes it from the cache. With no network, the newest in the cache that passes.
pub fn fetch_newest_passing(cache: &Cache, progress: Progress<'_>) -> Result<Kernel> {
    fetch_newest_passing_of(cache, |_| true, progress)
}

/// As [`fetch_newest_passing`], among the releases that `wanted` takes.
pub fn fetch_newest_passing_of(cache: &Cache, wanted: impl Fn(&str) -> bool, progress: Progress<'_>) -> Result<Kernel> {
    let candidates = match candidates(cache, progress) {
        Ok(candidates) => candidates,
        Err(error) => {
            for kernel in cached(cache)?.into_iter().filter(|kernel| wanted(kernel.release())) {
                if preflight(&kernel).is_ok_and(|verdict| verdict.passes()) {
                    progress(&format!("the mirror cannot be asked; {} from the cache will do", kernel.release()));
                    return Ok(kernel);
                }
            }
            return Err(error);
        }
    };
    let mut reasons = Vec::new();
    for candidate in candidates.iter().filter(|candidate| wanted(&candidate.release)) {
        match judge(cache, candidate, progress) {
            Ok(verdict) if verdict.passes() => return unpack(cache, candidate, progress),
            Ok(verdict) => {
                progress(&format!("skipped {verdict}"));
                reasons.push(verdict.to_string());
            }
            Err(error @ Error::Btf { .. }) => {
                progress(&format!("skipped {}: {error}", candidate.release));
                reasons.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::NoKernel { reasons: reasons.join("\n") })
}

/// Runs the pre-flight on a candidate, for which its headers are enough.
pub fn judge(cache: &Cache, candidate: &Candidate, progress: Progress<'_>) -> Result<Verdict> {
    let target = cache.path().join("kernels").join(&candidate.release);
    if target.exists() {
        return preflight(&Kernel::unpacked_in(&target));
    }
    progress(&format!("checking {} of {}", candidate.release, candidate.suite));
    let packages = cache.path().join("packages").join(&candidate.release);
    let headers = candidate.headers.get(..1).unwrap_or_default();
    download(cache, headers, &packages, progress)?;
    let unpacked = Scratch::new_in(cache)?;
    let directory = unpacked.path().join(&candidate.release);
    process::unpack(&packages, &directory, |file| Apt::is_one_of(file, headers))?;
    preflight(&Kernel::unpacked_in(&directory))
}

fn unpack(cache: &Cache, candidate: &Candidate, progress: Progress<'_>) -> Result<Kernel> {
    let target = cache.path().join("kernels").join(&candidate.release);
    let packages = cache.path().join("packages").join(&candidate.release);
    cache.complete(&target, progress, |partial, progress| {
        progress(&format!("downloading {} from {}: image, modules and headers", candidate.release, candidate.suite));
        let names: Vec<String> = candidate.headers.iter().chain(&candidate.image).cloned().collect();
        download(cache, &names, &packages, progress)?;
        progress(&format!("unpacking {}", candidate.release));
        process::unpack(&packages, partial, |file| Apt::is_one_of(file, &names))
    })?;
    // They have served their purpose; a failure to remove them does no harm.
    let _ = fs::remove_dir_all(packages);
    Ok(Kernel::unpacked_in(&target))
}

fn download(cache: &Cache, names: &[String], into: &Path, progress: Progress<'_>) -> Result<()> {
    let apt = Apt::new(cache, &KERNELS)?;
    let _lock = apt.lock(cache, progress)?;
    apt.download(names, into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, suite: &str) -> Package {
        Package { name: name.into(), version: "1".into(), suite: suite.into() }
    }

    #[test]
    fn candidates_are_whole_and_the_newest_of_the_preferred_suite_comes_first() {
        let mut packages = Vec::new();
        for (base, suite) in
            [("7.2.9+deb13", "trixie-backports"), ("7.2.13+deb13", "trixie-backports"), ("7.4.1+deb14", "sid")]
        {
            packages.extend([
                package(&format!("linux-headers-{base}-cloud-amd64"), suite),
                package(&format!("linux-headers-{base}-common"), suite),
                package(&format!("linux-kbuild-{base}"), suite),
                package(&format!("linux-binary-{base}-cloud-amd64"), suite),
                package(&format!("linux-modules-{base}-cloud-amd64"), suite),
            ]);
        }
        // An image whose headers have left the mirror, headers of another flavour, and headers without an image.
        packages.push(package("linux-image-6.18.15+deb13-cloud-amd64", "trixie-backports"));
        packages.push(package("linux-headers-7.2.9+deb13-amd64", "trixie-backports"));
        packages.push(package("linux-headers-7.5+deb14-cloud-amd64", "sid"));
        let releases: Vec<String> =
            assemble(&packages).into_iter().map(|c| format!("{} {}", c.suite, c.release)).collect();
        expect_test::expect![[r#"
            [
                "trixie-backports 7.2.13+deb13-cloud-amd64",
                "trixie-backports 7.2.9+deb13-cloud-amd64",
                "sid 7.4.1+deb14-cloud-amd64",
            ]
        "#]]
        .assert_debug_eq(&releases);
    }

    #[test]
    fn the_unsigned_image_is_preferred_and_old_kernels_have_another_package() {
        let base = |suite: &str, extra: &[&str]| {
            let mut packages = vec![
                package("linux-headers-7.1-cloud-amd64", suite),
                package("linux-headers-7.1-common", suite),
                package("linux-kbuild-7.1", suite),
            ];
            packages.extend(extra.iter().map(|name| package(name, suite)));
            assemble(&packages).remove(0).image
        };
        assert_eq!(
            base(
                "sid",
                &[
                    "linux-binary-7.1-cloud-amd64",
                    "linux-binary-unsigned-7.1-cloud-amd64",
                    "linux-modules-7.1-cloud-amd64",
                    "linux-base-7.1-cloud-amd64",
                ]
            ),
            [
                "linux-binary-unsigned-7.1-cloud-amd64=1",
                "linux-modules-7.1-cloud-amd64=1",
                "linux-base-7.1-cloud-amd64=1",
            ]
        );
        assert_eq!(base("sid", &["linux-image-7.1-cloud-amd64"]), ["linux-image-7.1-cloud-amd64=1"]);
    }

    #[test]
    fn a_version_number_names_its_release_but_no_longer_number() {
        assert!(is_release("7.2.13+deb14-cloud-amd64", "7.2.13"));
        assert!(is_release("7.2.13+deb14-cloud-amd64", "7.2.13+deb14-cloud-amd64"));
        assert!(!is_release("7.2.13+deb14-cloud-amd64", "7.2.1"));
    }
}
