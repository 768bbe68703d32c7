//! Lists the mirror's kernels with the pre-flight's verdict on each, then fetches the newest that passes.
use ekiden_vm::{Cache, candidates, fetch_newest_passing, judge, preflight};

fn main() -> Result<(), ekiden_vm::Error> {
    let cache = Cache::from_env()?;
    let mut progress = |line: &str| eprintln!("{line}");
    for candidate in candidates(&cache, &mut progress)? {
        match judge(&cache, &candidate, &mut |_| {}) {
            Ok(verdict) => println!("{:17} {verdict}", candidate.suite),
            Err(error) => println!("{:17} {}: {error}", candidate.suite, candidate.release),
        }
    }
    let kernel = fetch_newest_passing(&cache, &mut progress)?;
    let verdict = preflight(&kernel)?;
    println!(
        "{} in {}: {} functions, {} operations",
        verdict,
        kernel.directory().display(),
        verdict.kfuncs.len(),
        verdict.ops_fields.len()
    );
    Ok(())
}
