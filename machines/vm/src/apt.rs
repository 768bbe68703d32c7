//! Asks a Debian mirror by means of apt, with state, lists and cache of our own: the machine's apt is left as it was.

use crate::{Cache, Error, Result, error::Context, lock::Lock, process};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Which suites are asked for what.
#[derive(Debug)]
pub(crate) struct Source {
    /// The directory in the cache; also the name of the lock on it.
    name: &'static str,
    /// The preferred one first.
    pub(crate) suites: &'static [&'static str],
    /// Packages with such names are in every list of them.
    sample: &'static str,
}

/// Where kernels are looked for.
pub(crate) const KERNELS: Source =
    Source { name: "apt", suites: &["trixie-backports", "sid"], sample: "^linux-headers-[0-9].*" };

/// Where a newer QEMU is taken from. By itself: apt takes the newest version of all suites, with what that needs.
pub(crate) const STABLE: Source = Source { name: "apt-stable", suites: &["trixie"], sample: "^qemu-system-x86$" };

/// How old the package lists may be before they are fetched again.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// The signatures of the mirror are checked with this.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Told each step, one line at a time.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(&str);

/// A package at one version in one suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) suite: String,
}

/// Apt with a configuration of its own.
pub(crate) struct Apt {
    name: String,
    sample: &'static str,
    directory: PathBuf,
    config: PathBuf,
    mirror: String,
}

impl Apt {
    pub(crate) fn new(cache: &Cache, from: &'static Source) -> Result<Self> {
        let mirror = mirror()?;
        let sources: String = from.suites.iter().map(|suite| source(&mirror, suite)).collect();
        Self::with(cache, from.name, from.sample, mirror, sources)
    }

    /// In a directory of the cache, which is also the name of the lock on it.
    fn with(cache: &Cache, name: &str, sample: &'static str, mirror: String, sources: String) -> Result<Self> {
        let directory = cache.directory(name)?;
        for part in ["state", "lists", "cache", "tmp"] {
            cache.directory(&format!("{name}/{part}"))?;
        }
        if !Path::new(KEYRING).exists() {
            return Err(process::missing("debian-archive-keyring"));
        }
        let write = |name: &str, content: String| {
            let path = directory.join(name);
            // Apt reads its lists anew when these files are newer.
            if fs::read_to_string(&path).ok().as_deref() != Some(content.as_str()) {
                fs::write(&path, content).context("write", &path)?;
            }
            Ok(path)
        };
        write("state/status", String::new())?;
        let sources = write("sources.list", sources)?;
        let config = write("apt.conf", config(&directory, &sources))?;
        Ok(Self { name: name.to_owned(), sample, directory, config, mirror })
    }

    fn command(&self, program: &str) -> Result<Command> {
        let mut command = process::mortal(program)?;
        // Its own temporary files stay in the cache, too, if it is killed.
        command.arg("-c").arg(&self.config).env("TMPDIR", self.directory.join("tmp"));
        Ok(command)
    }

    /// One process at a time uses it.
    pub(crate) fn lock(&self, cache: &Cache, progress: Progress<'_>) -> Result<Lock> {
        cache.lock(&self.name, progress)
    }

    /// Fetches the package lists unless they are fresh.
    pub(crate) fn update(&self, cache: &Cache, progress: Progress<'_>) -> Result<()> {
        let _lock = self.lock(cache, progress)?;
        let stamp = self.directory.join("updated");
        let source = fs::metadata(&stamp).and_then(|metadata| metadata.modified()).ok();
        let same_mirror = fs::read_to_string(&stamp).is_ok_and(|mirror| mirror == self.mirror);
        if same_mirror && source.and_then(|time| time.elapsed().ok()).is_some_and(|age| age < FRESH) {
            return Ok(());
        }
        progress("fetching the mirror's package lists");
        match process::stdout(self.command("apt-get")?.args(["-o", "APT::Update::Error-Mode=any", "update"])) {
            // A mirror that stands still: the other suite, or what was fetched earlier, may do. Nothing is noted, so that
            // the next time asks again.
            Err(Error::Program { output, .. }) if output.contains("is expired") && self.has_lists() => {
                progress(&format!("going on without what is out of date: {}", output.trim()));
                return Ok(());
            }
            result => result.map_err(|error| self.network(error))?,
        };
        fs::write(&stamp, &self.mirror).context("write", stamp)
    }

    /// The packages whose name matches a regular expression.
    pub(crate) fn packages(&self, pattern: &str) -> Result<Vec<Package>> {
        let names = process::stdout(self.command("apt-cache")?.args(["search", "--names-only", pattern]))?;
        let names: Vec<&str> = names.lines().filter_map(|line| line.split(' ').next()).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        process::stdout(self.command("apt-cache")?.arg("madison").args(names)).map(|table| parse_madison(&table))
    }

    fn has_lists(&self) -> bool {
        self.packages(self.sample).is_ok_and(|packages| !packages.is_empty())
    }

    /// Downloads packages (`name=version`) into a directory, going on where an earlier try was interrupted; apt checks
    /// their checksums.
    pub(crate) fn download(&self, packages: &[String], into: &Path) -> Result<()> {
        fs::create_dir_all(into).context("create", into)?;
        process::output(self.command("apt-get")?.arg("download").args(packages).current_dir(into))
            .map(drop)
            .map_err(|error| self.network(error))
    }

    /// Downloads packages and all that they depend on, as for a machine on which nothing is installed.
    pub(crate) fn download_whole(&self, packages: &[&str], into: &Path) -> Result<()> {
        let partial = into.join("partial");
        fs::create_dir_all(&partial).context("create", &partial)?;
        let place = format!("Dir::Cache::archives={}", into.display());
        // What an earlier try has left of versions that the mirror does not have any more.
        process::output(self.command("apt-get")?.args(["-o", &place, "autoclean"]))?;
        let mut command = self.command("apt-get")?;
        command.args(["-y", "--no-install-recommends", "--download-only", "-o", &place, "install"]).args(packages);
        process::output(&mut command).map(drop).map_err(|error| self.network(error))
    }

    /// Whether a file is one of these packages (`name=version`), as apt names what it downloads.
    pub(crate) fn is_one_of(file: &str, packages: &[String]) -> bool {
        packages.iter().filter_map(|package| package.split_once('=')).any(|(name, version)| {
            let rest = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('_'));
            let rest = rest.and_then(|rest| rest.strip_prefix(version.replace(':', "%3a").as_str()));
            rest.is_some_and(|rest| rest.starts_with('_') && rest.ends_with(".deb"))
        })
    }

    fn network(&self, error: Error) -> Error {
        match error {
            Error::Program { output, .. } => Error::Fetch { mirror: self.mirror.clone(), output },
            other => other,
        }
    }
}

/// Nothing but the lists of packages: no descriptions for software centres.
fn source(mirror: &str, suite: &str) -> String {
    format!("deb [signed-by={KEYRING} target=Packages] {mirror} {suite} main\n")
}

/// A configuration for apt (`-c`) with the package lists of a release of Debian, a day old at most, on a machine that has no
/// package at all: what would be installed there can be asked with `apt-get -s`. Its directory is the cache's.
pub fn package_lists(cache: &Cache, release: &str, progress: Progress<'_>) -> Result<PathBuf> {
    let mirror = mirror()?;
    let mut sources = source(&mirror, release);
    if release != "sid" {
        sources.push_str(&source(&mirror, &format!("{release}-updates")));
        // On Debian's own servers the two archives are side by side; a mirror may have the main one only.
        if let Some(security) = words_of_sources().iter().find(|word| is_archive(word, &["debian-security"])) {
            sources.push_str(&source(security, &format!("{release}-security")));
        }
    }
    let apt = Apt::with(cache, &format!("apt-of-{release}"), "^cargo$", mirror, sources)?;
    apt.update(cache, progress)?;
    Ok(apt.config)
}

/// Read after the machine's own configuration, whose proxies and the like stay in force, but not that it takes unsigned
/// packages, nor that it keeps lists compressed, as images of containers do: apt looks into them for each package that it would
/// install, and unpacks a piece each time.
fn config(directory: &Path, sources: &Path) -> String {
    let directory = directory.display();
    let sources = sources.display();
    format!(
        r#"Dir::Etc::sourcelist "{sources}";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{directory}/state";
Dir::State::lists "{directory}/lists";
Dir::State::status "{directory}/state/status";
Dir::Cache "{directory}/cache";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::GzipIndexes "false";
Acquire::Retries "3";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
#clear APT::Default-Release;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"#
    )
}

/// The mirror named by `EKIDEN_DEBIAN_MIRROR`, or the Debian mirror that this machine's apt uses.
pub(crate) fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var("EKIDEN_DEBIAN_MIRROR") {
        return Ok(mirror);
    }
    words_of_sources().into_iter().find(|word| is_archive(word, &["debian", "debian.list"])).ok_or(Error::NoMirror)
}

/// The words of this machine's lists of sources, in the order of their files.
fn words_of_sources() -> Vec<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    files.iter().filter_map(|file| fs::read_to_string(file).ok()).flat_map(|text| words_in(&text)).collect()
}

/// Both the one-line and the paragraph form have an archive's address as a word.
fn words_in(sources: &str) -> Vec<String> {
    sources
        .lines()
        .filter(|line| line.starts_with("deb ") || line.starts_with("URIs:") || line.starts_with(' '))
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}

/// Whether a word is the address of an archive that is called so.
fn is_archive(word: &str, names: &[&str]) -> bool {
    let last = word.trim_end_matches('/').rsplit('/').next();
    word.contains(":/") && last.is_some_and(|last| names.contains(&last))
}

/// Reads the table of `apt-cache madison`: name | version | address suite/component architecture Packages.
fn parse_madison(table: &str) -> Vec<Package> {
    table
        .lines()
        .filter_map(|line| {
            let mut columns = line.split('|').map(str::trim);
            let (name, version, source) = (columns.next()?, columns.next()?, columns.next()?);
            let mut source = source.split_whitespace().skip(1);
            let (suite, _) = source.next()?.split_once('/')?;
            (source.last()? == "Packages").then(|| Package {
                name: name.to_owned(),
                version: version.to_owned(),
                suite: suite.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_versions_is_read() {
        let table = "\
linux-headers-7.3.4+deb13-cloud-amd64 | 7.3.4-1~bpo13+1 | http://mirror.example/debian trixie-backports/main amd64 Packages
linux-headers-7.2.13+deb14-cloud-amd64 |   7.2.13-1 | http://mirror.example/debian sid/main amd64 Packages
     linux |   7.2.13-1 | http://mirror.example/debian sid/main Sources
N: some remark
";
        expect_test::expect![[r#"
            [
                Package {
                    name: "linux-headers-7.3.4+deb13-cloud-amd64",
                    version: "7.3.4-1~bpo13+1",
                    suite: "trixie-backports",
                },
                Package {
                    name: "linux-headers-7.2.13+deb14-cloud-amd64",
                    version: "7.2.13-1",
                    suite: "sid",
                },
            ]
        "#]]
        .assert_debug_eq(&parse_madison(table));
    }

    #[test]
    fn only_the_version_that_was_asked_for_is_unpacked() {
        let packages = ["linux-kbuild-7.3=7.3.4-1~bpo13+1".to_owned(), "qemu=1:10.0-1".to_owned()];
        for (file, is_one) in [
            ("linux-kbuild-7.3_7.3.4-1~bpo13+1_amd64.deb", true),
            ("qemu_1%3a10.0-1_amd64.deb", true),
            ("linux-kbuild-7.3_7.3.3-1~bpo13+1_amd64.deb", false),
            ("linux-kbuild-7.3_7.3.4-1~bpo13+10_amd64.deb", false),
            ("linux-kbuild-7.3_7.3.4-1~bpo13+1_amd64.deb.partial", false),
        ] {
            assert_eq!(Apt::is_one_of(file, &packages), is_one, "{file}");
        }
    }

    /// `-c` comes after everything that the machine's administrator has set.
    #[test]
    fn a_machine_that_takes_unsigned_packages_gets_none_from_us() {
        let place = tempfile::tempdir().unwrap();
        let names =
            ["Acquire::AllowInsecureRepositories", "Acquire::AllowWeakRepositories", "APT::Get::AllowUnauthenticated"];
        let careless = names.map(|name| format!("{name} \"true\";\n")).concat();
        let [of_machine, ours] = ["machine.conf", "ours.conf"].map(|name| place.path().join(name));
        fs::write(&of_machine, careless).unwrap();
        fs::write(&ours, config(place.path(), &place.path().join("sources.list"))).unwrap();
        let mut dump = process::mortal("apt-config").unwrap();
        let dumped = process::stdout(dump.env("APT_CONFIG", &of_machine).arg("-c").arg(&ours).arg("dump")).unwrap();
        for name in names {
            assert!(dumped.contains(&format!("{name} \"false\";")), "{name} in {dumped}");
        }
    }

    #[test]
    fn the_main_archive_is_told_from_other_sources() {
        let find = |sources| {
            let found = words_in(sources).into_iter().find(|word| is_archive(word, &["debian", "debian.list"]));
            found.unwrap_or_default()
        };
        let lines = "# deb http://old.example/debian sid main\n\
                     deb http://s.example/debian-security bookworm-security main\n\
                     deb [arch=amd64] http://m.example/debian bookworm main\n";
        assert_eq!(find(lines), "http://m.example/debian");
        let paragraph = "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: trixie\n";
        assert_eq!(find(paragraph), "mirror+file:///etc/apt/mirrors/debian.list");
        assert_eq!(find("deb http://a.example/ubuntu noble main\n"), "");
    }
}
