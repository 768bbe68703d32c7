//! Builds an out-of-tree module for a fetched kernel, or for the newest that passes the pre-flight: `kbuild RELEASE|newest
//! MODULE_DIR [MAKE_ARGUMENT…]`.
use ekiden_vm::{BuildRoot, Cache, fetch, fetch_newest_passing};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [release, module_dir, make_args @ ..] = &args[..] else {
        return Err("usage: kbuild RELEASE|newest MODULE_DIR [MAKE_ARGUMENT…]".into());
    };
    let cache = Cache::from_env()?;
    let mut progress = |line: &str| eprintln!("{line}");
    let kernel = match release.as_str() {
        "newest" => fetch_newest_passing(&cache, &mut progress)?,
        release => fetch(&cache, release, &mut progress)?,
    };
    let root = BuildRoot::prepare(&cache, &mut progress)?;
    let make_args: Vec<&str> = make_args.iter().map(String::as_str).collect();
    match root.kbuild(&kernel, module_dir.as_ref(), &make_args) {
        Ok(printed) => println!("{printed}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
    Ok(())
}
