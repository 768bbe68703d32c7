//! What every file of this checkout keeps to, where no lint of the compiler's can tell.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ekiden_build::{Checkout, code_lines, count_text};
use serde_json::Value;
use walkdir::WalkDir;

use ekiden_measure::MAY_BE_UNSAFE;

mod c;
mod changelog;
mod comments;
mod crates;
mod examples;
mod figures;
mod help;
mod kernel_half;
mod named_tests;
mod orderings;
mod reasons;
mod spelling;

/// Directories without source: builds, git, packages of npm.
const SKIPPED: &[&str] = &["target", ".git", "node_modules", "dist"];

/// Ours, and that of the Rust which runs in the kernel.
const WORKSPACES: [&str; 2] = ["Cargo.toml", "hosts/kernel/Cargo.toml"];

/// What Debian 13 has.
const OLDEST_RUST: &str = "1.85";

/// The folders of the root that code is in, and which others each may depend on. Tests may use anything.
const FOLDERS: &[(&str, &[&str])] = &[
    ("framework", &[]),
    ("policies", &["framework"]),
    ("examples", &["framework", "policies"]),
    ("workload", &["framework"]),
    ("machines", &["framework"]),
    ("observe", &["framework"]),
    ("hosts", &["framework", "workload", "machines", "observe"]),
    ("lab", &["framework", "policies", "workload", "machines", "observe", "hosts"]),
    ("cli", &["framework", "policies", "workload", "machines", "observe", "hosts", "lab"]),
];

/// The folders of the root that no crate of the workspace is in.
const OTHER_FOLDERS: &[&str] = &["scripts", "templates"];

/// The documents in the root that name paths. Documents in `docs` and the README of each folder do, too.
const DOCUMENTS: &[&str] = &["README.md", "ARCHITECTURE.md", "DEVELOPING.md", "SECURITY.md"];

/// The most lines of a source file, without its tests.
const LINES_MOST: usize = 500;

fn root() -> PathBuf {
    Checkout::find().unwrap().root().to_owned()
}

/// All files with this extension, by their path in the checkout.
fn files(extension: &str) -> Vec<(String, String)> {
    let root = root();
    let files: Vec<_> = WalkDir::new(&root)
        .into_iter()
        .filter_entry(|entry| !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped))
        .map(Result::unwrap)
        .filter(|entry| entry.path().extension().is_some_and(|found| found == extension))
        .map(|entry| {
            let name = entry.path().strip_prefix(&root).unwrap().display().to_string();
            (name, fs::read_to_string(entry.path()).unwrap())
        })
        .collect();
    assert!(!files.is_empty(), "there are no .{extension} files in {}", root.display());
    files
}

fn assert_none(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn every_source_file_says_what_it_is() {
    for (extension, line, opening) in [("rs", 0, "//!"), ("ts", 0, "//"), ("c", 1, "/*"), ("h", 1, "/*")] {
        let opens = |text: &str| text.lines().nth(line).is_some_and(|line| line.starts_with(opening));
        let broken = files(extension).into_iter().filter(|(_, text)| !opens(text)).map(|(name, _)| name);
        let rule = format!("a .{extension} file opens with {opening}, after its licence if it is C");
        assert_none(&broken.collect::<Vec<_>>(), &rule);
    }
}

#[test]
fn nothing_is_left_to_be_done() {
    // In two parts, as this file is looked at too.
    let words = [["to", "do!"], ["unimplem", "ented!"], ["db", "g!"], ["FIX", "ME"]].map(|parts| parts.concat());
    let broken: Vec<String> = files("rs")
        .into_iter()
        .chain(files("c"))
        .filter(|(_, text)| words.iter().any(|word| text.contains(word.as_str())))
        .map(|(name, _)| name)
        .collect();
    assert_none(&broken, "no placeholders");
}

#[test]
fn unsafe_code_is_only_where_it_may_be() {
    let mut broken = Vec::new();
    for (name, text) in files("rs") {
        // What must not compile may well contain it.
        if MAY_BE_UNSAFE.iter().any(|place| name.starts_with(&format!("{place}/"))) || name.contains("/ui/fail/") {
            continue;
        }
        let count = count_text(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if count.blocks + count.functions + count.items + count.attributes > 0 {
            broken.push(name);
        }
    }
    assert_none(&broken, "unsafe code is only where MAY_BE_UNSAFE says");
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    let mut broken = Vec::new();
    for (name, text) in files("rs") {
        let is_root = name.ends_with("src/lib.rs") || name.ends_with("src/main.rs");
        let may = MAY_BE_UNSAFE.iter().any(|place| name.starts_with(&format!("{place}/")));
        let forbids = text.contains("#![forbid(unsafe_code)]");
        // A program beside a library that may have some need not.
        if is_root && !may && !forbids || name.ends_with("src/lib.rs") && may && forbids {
            broken.push(name);
        }
    }
    assert_none(
        &broken,
        "#![forbid(unsafe_code)] stands in the root of every crate that is not in MAY_BE_UNSAFE, and of no other",
    );
}

#[test]
fn every_package_has_the_license() {
    let mut broken = Vec::new();
    for (name, text) in files("toml") {
        let is_package = name.ends_with("Cargo.toml") && text.contains("[package]");
        if is_package && !text.contains("license.workspace = true") && !text.contains("license = \"GPL-2.0-only\"") {
            broken.push(name);
        }
    }
    assert_none(&broken, "the licence of every package is GPL-2.0-only");
    for workspace in WORKSPACES {
        let text = fs::read_to_string(root().join(workspace)).unwrap();
        assert!(text.contains("license = \"GPL-2.0-only\""), "{workspace}");
    }
}

/// Our own crates and what they depend on, as cargo knows them.
fn packages(manifest: &str, args: &[&str]) -> Vec<Value> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version=1"]).args(args).arg("--manifest-path").arg(root().join(manifest));
    let output = cargo.output().unwrap();
    let mut metadata: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let Value::Array(packages) = metadata["packages"].take() else { panic!("{manifest} has no packages") };
    packages
}

/// A path of cargo's, without the root of the checkout.
fn within(path: &Value) -> PathBuf {
    let path = Path::new(path.as_str().unwrap()).canonicalize().unwrap();
    path.strip_prefix(root()).unwrap_or_else(|_| panic!("{} is elsewhere", path.display())).to_owned()
}

#[test]
fn folders_depend_on_each_other_one_way() {
    let mut broken = Vec::new();
    let mut arrows = 0;
    for package in WORKSPACES.iter().flat_map(|manifest| packages(manifest, &["--no-deps"])) {
        let of = within(&package["manifest_path"]);
        let folder = first(&of);
        let may = FOLDERS.iter().find(|(name, _)| *name == folder);
        let (_, may) = may.unwrap_or_else(|| panic!("{} is in none of the folders", of.display()));
        for on in package["dependencies"].as_array().unwrap() {
            if on["path"].is_null() || on["kind"] == "dev" {
                continue;
            }
            arrows += 1;
            let on = within(&on["path"]);
            if first(&on) != folder && !may.contains(&first(&on)) {
                broken.push(format!("{} depends on {}", of.display(), on.display()));
            }
        }
    }
    assert!(arrows > 50, "only {arrows} dependencies were seen");
    assert_none(&broken, "ARCHITECTURE.md and FOLDERS say which folder may depend on which");
    for (at, (folder, may)) in FOLDERS.iter().enumerate() {
        assert!(may.iter().all(|on| FOLDERS[..at].iter().any(|(earlier, _)| earlier == on)), "{folder}: a circle");
    }
}

/// The folder of the root that a path is in.
fn first(path: &Path) -> &str {
    path.iter().next().and_then(|name| name.to_str()).unwrap_or_default()
}

#[test]
fn no_two_crates_or_headers_share_a_name() {
    let mut seen = BTreeSet::new();
    let mut broken = Vec::new();
    for package in WORKSPACES.iter().flat_map(|manifest| packages(manifest, &["--no-deps"])) {
        let directory = within(&package["manifest_path"]).parent().unwrap().to_owned();
        let name = directory.file_name().unwrap().to_str().unwrap();
        let package = package["name"].as_str().unwrap();
        // Packages of the kernel's workspace say so.
        if package != name && package != format!("ekiden-{name}") && package != format!("ekiden-kernel-{name}") {
            broken.push(format!("{} is the package {package}", directory.display()));
        }
        if !seen.insert(name.to_owned()) {
            broken.push(format!("{} is not the only one called {name}", directory.display()));
        }
    }
    for (name, _) in files("h") {
        let file = Path::new(&name).file_name().unwrap().to_str().unwrap().to_owned();
        if !seen.insert(file) {
            broken.push(format!("{name} is not the only header of that name"));
        }
    }
    assert_none(&broken, "a folder is called after its package, and a name is one thing's");
}

#[test]
fn every_folder_says_what_lives_there() {
    for (folder, may) in FOLDERS {
        let readme = readme(folder);
        for other in FOLDERS.iter().map(|(other, _)| other).filter(|other| *other != folder) {
            let rule =
                readme.split("May depend on").nth(1).unwrap_or_else(|| panic!("{folder}: on what may it depend?"));
            let rule = rule.split('.').next().unwrap_or_default();
            assert_eq!(rule.contains(&format!("`{other}`")), may.contains(other), "{folder}/README.md on {other}");
        }
    }
}

#[test]
fn a_folder_without_crates_says_what_each_thing_in_it_is_for() {
    for folder in OTHER_FOLDERS {
        let readme = readme(folder);
        assert!(readme.contains("May depend on"), "{folder}: on what may it depend?");
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        let names = entries.map(|name| name.into_string().unwrap()).filter(|name| name != "README.md");
        let unnamed: Vec<String> = names.filter(|name| !readme.contains(&format!("`{name}`"))).collect();
        assert_none(&unnamed, &format!("{folder}/README.md names all that is in the folder"));
    }
}

#[test]
fn the_folder_of_documents_names_each_and_says_what_they_may_depend_on() {
    let readme = fs::read_to_string(root().join("docs/README.md")).unwrap();
    assert!(readme.contains("May depend on"), "docs: on what may it depend?");
    let entries = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.into_string().unwrap()).filter(|name| name != "README.md");
    let unnamed: Vec<String> = names.filter(|name| !readme.contains(&format!("(../docs/{name})"))).collect();
    assert_none(&unnamed, "docs/README.md names all documents of the folder");
}

/// What a folder says of itself.
fn readme(folder: &str) -> String {
    let text = fs::read_to_string(root().join(folder).join("README.md")).unwrap_or_else(|e| panic!("{folder}: {e}"));
    assert!(text.lines().count() <= 25, "{folder}/README.md is for ten lines and a table");
    text
}

#[test]
fn no_dependency_needs_a_newer_rust_than_ours() {
    for manifest in WORKSPACES {
        let packages = packages(manifest, &["--locked", "--filter-platform=x86_64-unknown-linux-gnu"]);
        let broken: Vec<String> = packages
            .iter()
            .filter_map(|package| Some((package, package["rust_version"].as_str()?)))
            .filter(|(_, needed)| minor(needed) > minor(OLDEST_RUST))
            .map(|(package, needed)| format!("{} {} needs {needed}", package["name"], package["version"]))
            .collect();
        assert_none(&broken, &format!("{manifest}: everything compiles with Rust {OLDEST_RUST}; lock an older one"));
    }
    let text = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(text.contains(&format!("rust-version = \"{OLDEST_RUST}\"")));
}

/// The second number of a version of Rust; the first is 1.
fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_else(|| panic!("{version}"))
}

#[test]
fn every_path_that_the_documents_name_exists() {
    let root = root();
    let (mut broken, mut named) = (Vec::new(), 0);
    let folders = FOLDERS.iter().map(|(folder, _)| folder).chain(OTHER_FOLDERS);
    let readmes = folders.map(|folder| format!("{folder}/README.md"));
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = docs.map(|path| path.strip_prefix(&root).unwrap().display().to_string());
    for document in DOCUMENTS.iter().map(|name| (*name).to_owned()).chain(readmes).chain(docs) {
        let text = fs::read_to_string(root.join(&document)).unwrap_or_else(|error| panic!("{document}: {error}"));
        let paths = paths_in(&text);
        named += paths.len();
        broken.extend(
            paths.into_iter().filter(|path| !root.join(path).exists()).map(|path| format!("{document}: {path}")),
        );
    }
    assert!(named > 100, "only {named} paths were found");
    assert_none(&broken, "what a document names is there");
}

/// The most lines of code of a policy, without its tests, if the head of its file does not say more.
const POLICY_LINES_MOST: usize = 250;

/// Policies that are shown as short ones: the first that a newcomer reads, and two of papers/000.
const SHORT_POLICIES: [(&str, usize); 5] =
    [("fifo", 30), ("global_fifo", 30), ("llc_fifo", 35), ("locality", 150), ("shinjuku", 200)];

/// The limit that the head of a policy's file gives itself.
fn own_limit(text: &str) -> Option<usize> {
    let mut head = text.lines().map_while(|line| line.strip_prefix("//!"));
    let limit = head.find_map(|line| line.strip_prefix(" Lines without tests: "))?;
    let limit = limit.strip_suffix(" at most.").and_then(|limit| limit.parse().ok());
    Some(limit.expect("a head says `Lines without tests: 300 at most.`"))
}

#[test]
fn policies_stay_on_their_page() {
    macro_rules! files {
        ($($module:ident $policy:ident)*) => { [$(stringify!($module)),*] };
    }
    for policy in ekiden_policies::for_each_policy!(files) {
        let text = fs::read_to_string(root().join(format!("policies/src/{policy}.rs"))).unwrap();
        let own = own_limit(&text);
        assert!(own.is_none_or(|own| own > POLICY_LINES_MOST), "{policy}.rs needs no limit of its own");
        let short = SHORT_POLICIES.iter().find(|(name, _)| *name == policy).map(|(_, limit)| *limit);
        let limit = own.or(short).unwrap_or(POLICY_LINES_MOST);
        let lines = code_lines(&text).unwrap();
        assert!(lines <= limit, "{policy}.rs has {lines} lines of code, more than {limit}");
    }
}

#[test]
fn a_long_policy_says_its_limit_in_its_head() {
    let text = "//! First come, first served.\n//!\n//! Lines without tests: 350 at most.\nuse a;\n";
    assert_eq!(own_limit(text), Some(350));
    assert_eq!(own_limit("//! First come.\n\n//! Lines without tests: 350 at most.\n"), None);
}

/// How many lines there are before the tests. All files of tests, and what is built of other files, have none.
fn lines_without_tests(name: &str, text: &str) -> usize {
    if name.contains("/tests/")
        || name.ends_with("/tests.rs")
        || name.ends_with("_tests.rs")
        || name.contains("/assets/")
    {
        return 0;
    }
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
    tests.unwrap_or(lines.len())
}

#[test]
fn source_files_are_short() {
    let files = ["rs", "c", "h", "S", "ts", "mjs"].into_iter().flat_map(files);
    let lengths = files.map(|(name, text)| (lines_without_tests(&name, &text), name));
    let long: Vec<_> = lengths.filter(|(lines, _)| *lines > LINES_MOST).map(|(_, name)| name).collect();
    assert_none(&long, "a source file has one subject and 500 lines at most");
}

#[test]
fn lines_of_tests_do_not_count() {
    let text = "//! One.\nfn two() {}\n#[cfg(test)]\nfn four() {}\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(lines_without_tests("a/src/lib.rs", text), 4);
    assert_eq!(lines_without_tests("a/tests/all.rs", text), 0);
}

/// The invariants in a text, each with its number and the tests that it names, as file and function. None if it says that it has none.
fn invariants(text: &str) -> Vec<(usize, Vec<(String, String)>)> {
    let section = text.split("\n## Invariants\n").nth(1).expect("ARCHITECTURE.md has invariants");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut found = Vec::new();
    for number in 1.. {
        let Some((_, rest)) = section.split_once(&format!("\n{number}. ")) else { break };
        let item = rest.split_once(&format!("\n{}. ", number + 1)).map_or(rest, |(item, _)| item);
        let Some((_, named)) = item.split_once("*Test:*") else {
            assert!(item.contains("*No test.*"), "invariant {number} names no test, and does not say that it has none");
            found.push((number, Vec::new()));
            continue;
        };
        let (mut file, mut tests) = (String::new(), Vec::new());
        for word in named.split('`').skip(1).step_by(2) {
            if word.ends_with(".rs") {
                word.clone_into(&mut file);
            } else {
                tests.push((file.clone(), word.to_owned()));
            }
        }
        assert!(!tests.is_empty(), "invariant {number} names no test");
        found.push((number, tests));
    }
    found
}

#[test]
fn invariants_name_tests_that_exist() {
    let found = invariants(&fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap());
    assert!(found.len() >= 24, "only {} invariants were found", found.len());
    let named: Vec<_> = found.iter().flat_map(|(number, tests)| tests.iter().map(move |test| (number, test))).collect();
    let broken: Vec<String> = named
        .into_iter()
        .filter(|(_, (file, test))| {
            let text = fs::read_to_string(root().join(file)).unwrap_or_default();
            !text.contains(&format!("fn {test}("))
        })
        .map(|(number, (file, test))| format!("{number}: {file} has no {test}"))
        .collect();
    assert_none(&broken, "an invariant names the test that holds it");
    let without = found.iter().filter(|(_, tests)| tests.is_empty()).count();
    assert_eq!(without, 0, "invariants without a test");
}

/// The crate's documentation has a page for each policy, from the head of its file; so nothing else has to name a new one.
#[test]
fn each_policy_says_its_rule_and_what_it_gives_up() {
    let policies = fs::read_to_string(root().join("policies/src/lib.rs")).unwrap();
    let list = policies.split("policies! {").nth(1).and_then(|rest| rest.split('}').next()).unwrap();
    let modules: Vec<&str> = list.lines().filter_map(|line| Some(line.trim().split_once("::")?.0)).collect();
    assert_eq!(modules.len(), ekiden_policies::NAMES.len());
    let says = |module: &&str| {
        let text = fs::read_to_string(root().join(format!("policies/src/{module}.rs"))).unwrap();
        let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
        head.join("").contains("gives up")
    };
    let silent: Vec<String> = modules.into_iter().filter(|module| !says(module)).map(str::to_owned).collect();
    assert_none(&silent, "the head of a policy's file says its rule in one sentence and what it gives up in another");
}

#[test]
fn policies_that_the_guide_names_exist() {
    let guide = fs::read_to_string(root().join("docs/policies.md")).unwrap();
    let rows = guide.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.split('|').nth(2));
    let named: Vec<&str> = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 10, "{named:?}");
    let unknown = named.into_iter().filter(|name| !ekiden_policies::NAMES.contains(name)).map(str::to_owned);
    let unknown: Vec<String> = unknown.collect();
    assert_none(&unknown, "docs/policies.md names policies that there are");
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    // In two parts, as this file is looked at too.
    let words =
        [["/wo", "rk/"], ["/ro", "ot/."], ["deb.deb", "ian.org"], ["crates", ".io/"]].map(|parts| parts.concat());
    let mut broken = Vec::new();
    for extension in ["rs", "c", "h", "toml", "md", "ts", "mjs", "json"] {
        for (name, text) in files(extension) {
            broken
                .extend(words.iter().filter(|word| text.contains(word.as_str())).map(|word| format!("{name}: {word}")));
        }
    }
    assert_none(&broken, "paths of one machine and hosts of registries are not for others");
}

/// What looks like a path of this checkout, in `code` or in [a link](path).
fn paths_in(text: &str) -> BTreeSet<String> {
    let code = text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    code.chain(links)
        .map(|word| {
            word.trim_start_matches("../").trim_start_matches("./").trim_end_matches(['/', ',', '.', ':']).to_owned()
        })
        .filter(|word| is_path(word))
        .collect()
}

fn is_path(word: &str) -> bool {
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    // The first four are gone, and named nowhere any more.
    let others = ["crates", "kernel", "page", "fuzz", "docs", "scripts", "templates", ".ci"];
    let inside =
        FOLDERS.iter().map(|(folder, _)| folder).chain(&others).any(|folder| first(Path::new(word)) == *folder);
    plain && (inside && word.contains('/') || !word.contains('/') && word.ends_with(".md"))
}

#[test]
fn paths_are_told_from_other_words() {
    let text = "See `framework/abi/src/lib.rs`, `framework/`, [this](DEVELOPING.md) and [that](../docs/agent.md); not `ops.enqueue`, `a/b` or policies/x.";
    let paths: Vec<String> = paths_in(text).into_iter().collect();
    assert_eq!(paths, ["DEVELOPING.md", "docs/agent.md", "framework/abi/src/lib.rs"]);
}
