//! Within a folder of the root the crates stand in an order, which its README states. A crate depends only on those before it.
//! `folders_depend_on_each_other_one_way` is about the folders themselves.

use std::fs;

use super::{FOLDERS, WORKSPACES, assert_none, first, packages, root, within};

/// What the order begins with, in a README. It ends with the sentence.
const ORDER: &str = "Order of the crates, lowest first:";

/// The crates that a README names in their order.
fn order(readme: &str) -> Vec<String> {
    let sentence = readme.split(ORDER).nth(1).and_then(|rest| rest.split('.').next()).unwrap_or_default();
    sentence.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A crate by its path, and those of the same folder that it depends on. What only its tests use is not among them: an example in a
/// crate's documentation may need a host, which stands above.
struct Crate {
    name: String,
    uses: Vec<String>,
}

/// All crates of a folder, in either workspace.
fn crates(folder: &str) -> Vec<Crate> {
    let mut found = Vec::new();
    for package in WORKSPACES.iter().flat_map(|manifest| packages(manifest, &["--no-deps"])) {
        let manifest = within(&package["manifest_path"]);
        if first(&manifest) != folder {
            continue;
        }
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let ours = dependencies.filter(|on| !on["path"].is_null() && on["kind"] != "dev").map(|on| within(&on["path"]));
        let uses = ours.filter(|on| first(on) == folder).map(|on| on.display().to_string()).collect();
        found.push(Crate { name: manifest.parent().unwrap().display().to_string(), uses });
    }
    found
}

/// Mistakes of an order: crates that it has not, names that are none's, and crates that depend on one that does not stand before them.
fn wrong(order: &[String], crates: &[Crate]) -> Vec<String> {
    let place = |name: &String| order.iter().position(|other| other == name);
    let mut wrong = Vec::new();
    for Crate { name, uses } in crates {
        let Some(at) = place(name) else {
            wrong.push(format!("{name} is missing"));
            continue;
        };
        let above = uses.iter().filter(|on| place(on).is_none_or(|on| on >= at));
        wrong.extend(above.map(|on| format!("{name} depends on {on}")));
    }
    let is_crate = |name: &&String| crates.iter().any(|of| of.name == **name);
    wrong.extend(order.iter().filter(|name| !is_crate(name)).map(|name| format!("there is no crate {name}")));
    wrong
}

#[test]
fn crates_of_a_folder_depend_on_those_before_them() {
    let (mut broken, mut arrows) = (Vec::new(), 0);
    for (folder, _) in FOLDERS {
        let crates = crates(folder);
        // One alone has no order.
        if crates.len() < 2 {
            continue;
        }
        arrows += crates.iter().map(|of| of.uses.len()).sum::<usize>();
        let readme = fs::read_to_string(root().join(folder).join("README.md")).unwrap();
        let order = order(&readme);
        broken.extend(wrong(&order, &crates).into_iter().map(|what| format!("{folder}/README.md: {what}")));
    }
    assert!(arrows > 20, "only {arrows} dependencies within folders were seen");
    assert_none(
        &broken,
        "the README of a folder has the order of its crates, and each depends only on those before it",
    );
}

#[test]
fn an_order_that_is_not_kept_is_found() {
    let order = order("The order. Order of the crates, lowest first: `low`,\n`high`, `gone`. `other` is none.\n");
    assert_eq!(order, ["low", "high", "gone"]);
    let of =
        |name: &str, uses: &[&str]| Crate { name: name.into(), uses: uses.iter().map(|on| (*on).into()).collect() };
    let crates = [of("high", &["low"]), of("low", &["high", "new"]), of("new", &[])];
    let expected = ["low depends on high", "low depends on new", "new is missing", "there is no crate gone"];
    assert_eq!(wrong(&order, &crates), expected);
}
