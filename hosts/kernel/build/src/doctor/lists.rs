//! The table of packages and the choice of Rust, against what the mirror has for each release of Debian on this very day.

use super::*;
use crate::command;
use distribution::rust_roles;
use ekiden_vm::Cache;
use rust_set::{Role, RustSet};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};
use tempfile::TempDir;

const RELEASES: [(&str, Distribution); 3] =
    [("bookworm", Distribution::Debian12), ("trixie", Distribution::Debian), ("sid", Distribution::Debian)];

const ROLES: [Role; 5] = [Role::Cargo, Role::Rustc, Role::Library, Role::Rustfmt, Role::Clippy];

/// A machine with some release of Debian, as its apt sees it.
struct Fresh {
    config: PathBuf,
    /// What it has besides the configuration of the cache: which packages are installed.
    _place: TempDir,
    place: PathBuf,
}

impl Fresh {
    /// No package at all.
    fn new(release: &str) -> Self {
        static UPDATED: OnceLock<Vec<(&str, PathBuf)>> = OnceLock::new();
        let lists = UPDATED.get_or_init(|| {
            let cache = Cache::from_env().unwrap();
            let fetch = |release| ekiden_vm::package_lists(&cache, release, &mut |line| eprintln!("{release}: {line}"));
            let fetch = |release| match fetch(release) {
                Ok(config) => config,
                Err(error) => panic!("the package lists of {release} are needed for this test: {error}"),
            };
            RELEASES.map(|(release, _)| (release, fetch(release))).into()
        });
        let config = &lists.iter().find(|(name, _)| *name == release).unwrap().1;
        let directory = TempDir::new().unwrap();
        let place = directory.path().to_owned();
        let status = place.join("status");
        fs::write(&status, "").unwrap();
        // What apt makes of the lists is kept for all; what it makes of them and of what is installed is not.
        let own = format!(
            "Dir::State::status \"{}\";\nDir::Cache::pkgcache \"{}\";\n",
            status.display(),
            place.join("pkgcache.bin").display()
        );
        let text = fs::read_to_string(config).unwrap() + &own;
        fs::write(place.join("apt.conf"), text).unwrap();
        Self { config: place.join("apt.conf"), _place: directory, place }
    }

    fn apt(&self, program: &str, words: &[&str]) -> String {
        let mut apt = Command::new(program);
        apt.arg("-c").arg(&self.config).args(words).env("LC_ALL", "C");
        command::stdout(&mut apt).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What `apt-get install` would do.
    fn plan(&self, packages: &[String]) -> String {
        let mut words = vec!["-s", "-y", "--no-install-recommends", "install"];
        words.extend(packages.iter().map(String::as_str));
        self.apt("apt-get", &words)
    }

    /// What `apt-get install` says before it begins. For hundreds of packages that takes a tenth of a whole plan, which has their order.
    fn summary(&self, packages: &[String]) -> String {
        let mut apt = Command::new("apt-get");
        // If nothing but the named packages is to be installed, apt-get does not ask and installs them. Without dpkg it cannot.
        apt.arg("-c").arg(&self.config).args(["--assume-no", "-o", "Dir::Bin::dpkg=/bin/false"]);
        apt.args(["--no-install-recommends", "install"]).args(packages);
        let output = apt.env("LC_ALL", "C").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// With some packages and all that they need.
    fn with(release: &str, packages: &str) -> Self {
        let fresh = Self::new(release);
        let packages: Vec<String> = packages.split(' ').map(str::to_owned).collect();
        let plan = fresh.plan(&packages);
        // Inst cargo (1.85.1+dfsg1-1 Debian:13.8/stable [amd64])
        let exact: Vec<String> = plan
            .lines()
            .filter_map(|line| line.strip_prefix("Inst "))
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some(format!("{}={}", words.next()?, words.next()?.strip_prefix('(')?))
            })
            .collect();
        let mut words = vec!["show", "--no-all-versions"];
        words.extend(exact.iter().map(String::as_str));
        let shown = fresh.apt("apt-cache", &words);
        let installed = shown.replace("Package: ", "Status: install ok installed\nPackage: ");
        fs::write(fresh.place.join("status"), installed).unwrap();
        fresh
    }

    fn choose(&self, tests: bool) -> crate::Result<RustSet> {
        RustSet::choose(tests, Some(&self.config))
    }

    /// Rust's own version of a package that apt would install or has installed.
    fn versions(&self, packages: &[String]) -> Vec<String> {
        let words: Vec<&str> = ["policy"].into_iter().chain(packages.iter().map(String::as_str)).collect();
        let policy = self.apt("apt-cache", &words);
        let candidates = policy.lines().filter_map(|line| line.trim().strip_prefix("Candidate: "));
        candidates.map(|version| version.split(['+', '-']).next().unwrap_or_default().to_owned()).collect()
    }
}

#[test]
fn all_packages_of_the_table_install_together_on_each_debian() {
    for (release, family) in RELEASES {
        let fresh = Fresh::new(release);
        let rust = fresh.choose(true).unwrap();
        let mut packages = rust.install.clone();
        for need in Need::ALL.into_iter().filter(|need| rust_roles(*need).is_none()) {
            packages.extend(family.packages(need, "amd64"));
        }
        packages.sort();
        packages.dedup();
        is_one_new_version(release, &fresh, &rust);
        let summary = fresh.summary(&packages);
        let installed = summary.split("The following NEW packages will be installed:\n").nth(1).unwrap_or_default();
        let installed: Vec<&str> =
            installed.lines().take_while(|line| line.starts_with(' ')).flat_map(str::split_whitespace).collect();
        for package in &packages {
            assert!(installed.contains(&package.as_str()), "{release}: {package} is not installed:\n{summary}");
        }
        assert!(summary.contains(" 0 to remove "), "{release}: {summary}");
    }
}

/// A whole set of one version that is new enough, and of all such sets the newest.
fn is_one_new_version(release: &str, fresh: &Fresh, rust: &RustSet) {
    let all = rust_set::packages(&rust.name, &ROLES);
    assert_eq!(rust.install, all, "{release}");
    assert_eq!(fresh.versions(&all), vec![rust.version.clone(); 5], "{release}: {rust:?}");
    let minor: u32 = rust.version.strip_prefix("1.").unwrap().split('.').next().unwrap().parse().unwrap();
    assert!(minor >= 85, "{release}: {rust:?}");
    // The set is the newest of all that would do.
    for other in ["plain", "web"] {
        let versions = fresh.versions(&rust_set::packages(other, &ROLES));
        let is_whole = versions.len() == 5 && versions.iter().all(|version| *version == versions[0]);
        let minor_of = |version: &str| version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0);
        assert!(!is_whole || minor_of(&versions[0]) <= minor, "{release}: {other} {versions:?}, not {rust:?}");
    }
}

#[test]
fn a_rust_that_is_new_enough_is_kept_and_completed() {
    // The set's own names, with the newest set of the other names beside it or not.
    for (release, set) in [("bookworm", "web"), ("trixie", "plain"), ("trixie", "web")] {
        let two = rust_set::packages(set, &[Role::Cargo, Role::Rustc]).join(" ");
        let machine = Fresh::with(release, &two);
        let rust = machine.choose(false).unwrap();
        assert_eq!(rust.name, set, "{release}: {rust:?}");
        assert_eq!(rust.install, rust_set::packages(set, &[Role::Library]), "{release}: {rust:?}");
        assert!(!machine.plan(&rust.install).contains("\nRemv "), "{release}");
    }
}

#[test]
fn of_a_whole_toolchain_only_what_tests_need_is_missing() {
    let whole = Fresh::with("trixie", &rust_set::packages("plain", &ROLES[..3]).join(" "));
    assert_eq!(whole.choose(false).unwrap().install, [""; 0]);
    assert_eq!(whole.choose(true).unwrap().install, rust_set::packages("plain", &ROLES[3..]));
}

#[test]
fn a_rust_that_is_too_old_makes_room_for_a_whole_set() {
    let machine = Fresh::with("bookworm", "cargo rustc");
    let rust = machine.choose(false).unwrap();
    assert_eq!((rust.name.as_str(), rust.install.len()), ("web", 3), "{rust:?}");
    let plan = machine.plan(&rust.install);
    assert!(plan.contains("\nRemv cargo ") || plan.starts_with("Remv cargo "), "{plan}");
}

#[test]
fn a_set_that_would_remove_something_else_is_refused_with_its_name() {
    // Debian's rustup and its cargo cannot be installed together.
    let machine = Fresh::with("trixie", "rustup");
    let message = machine.choose(false).unwrap_err().to_string();
    assert!(message.contains("would remove rustup") && message.contains("rustup component add"), "{message}");
}

#[test]
fn apt_without_lists_has_no_rust_and_says_so() {
    let place = TempDir::new().unwrap();
    let config = place.path().join("apt.conf");
    let lists = format!("Dir::State::lists \"{}\";\n", place.path().display());
    let fresh = Fresh::new("trixie");
    fs::write(&config, fs::read_to_string(&fresh.config).unwrap() + &lists).unwrap();
    let message = RustSet::choose(false, Some(Path::new(&config))).unwrap_err().to_string();
    assert!(message.contains("no packages bring Rust 1.85 or newer"), "{message}");
}
