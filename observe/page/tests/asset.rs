//! The page that is compiled in is made of the sources in the folder `browser`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use flate2::Crc;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("browser")
}

/// The sources of the page, in the order of their names.
fn sources() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(root().join("src")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.extend(["index.html", "package-lock.json", "vite.config.ts"].map(|name| root().join(name)));
    files.sort();
    files
}

#[test]
fn the_page_is_made_of_its_sources() {
    let mut digest = Crc::new();
    for file in sources() {
        digest.update(&fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    }
    let noted = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/page.digest")).unwrap();
    assert_eq!(
        noted.trim(),
        format!("{:08x}", digest.sum()),
        "the page is older than its sources: cd observe/page/browser && npm ci && npm run build"
    );
}
