//! The policy that the README shows is the one that is compiled.

use std::{fs, path::Path};

#[test]
fn the_readme_shows_fifo_as_it_is() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(here.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let readme = read("../README.md");
    let (_, after) = readme.split_once("```rust\n").expect("the README shows no Rust");
    let (shown, _) = after.split_once("```").expect("the README's Rust does not end");
    assert_eq!(shown, read("src/fifo.rs"), "copy policies/src/fifo.rs into README.md");
}
