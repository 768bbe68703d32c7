//! Builds an out-of-tree module for a fetched kernel: `kbuild RELEASE MODULE_DIR [MAKE_ARGUMENT…]`.
use ekiden_vm::{BuildRoot, Cache, fetch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [release, module_dir, make_args @ ..] = &args[..] else {
        return Err("usage: kbuild RELEASE MODULE_DIR [MAKE_ARGUMENT…]".into());
    };
    let cache = Cache::from_env()?;
    let mut progress = |line: &str| eprintln!("{line}");
    let kernel = fetch(&cache, release, &mut progress)?;
    let root = BuildRoot::prepare(&cache, &mut progress)?;
    let make_args: Vec<&str> = make_args.iter().map(String::as_str).collect();
    let printed = root.kbuild(&kernel, module_dir.as_ref(), &make_args).map_err(|error| error.to_string())?;
    println!("{printed}");
    Ok(())
}
