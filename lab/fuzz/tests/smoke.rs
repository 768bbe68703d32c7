//! Each target for about a second, from its seeds; and the canary, which shows that this finds something. `EKIDEN_FUZZ_MINUTES=60`
//! fuzzes for that long, all targets in turn, from another seed each time.

use std::panic::catch_unwind;
use std::time::{Duration, Instant};
use std::{fs, path::Path};

use ekiden_fuzz::{Mutator, TARGETS, Target, canary};

/// How many inputs are made of the seeds: a second's worth or less, the same on every machine.
const INPUTS: u32 = 4_000;

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// The first input that makes the target panic.
fn fuzz(name: &str, target: Target, seed: u64) -> Option<Vec<u8>> {
    let mut mutator = Mutator::new(seeds(name), seed);
    (0..INPUTS).map(|_| mutator.next_input()).find(|input| catch_unwind(|| target(input)).is_err())
}

#[test]
fn every_seed_is_good() {
    for (name, target) in TARGETS {
        for seed in seeds(name) {
            let shown = String::from_utf8_lossy(&seed).chars().take(60).collect::<String>();
            assert!(target(&seed), "lab/fuzz/seeds/{name}: make this one anew, the format has changed: {shown}");
        }
    }
}

#[test]
fn no_reader_panics_on_what_is_made_of_its_seeds() {
    let minutes: u64 =
        std::env::var("EKIDEN_FUZZ_MINUTES").map_or(0, |minutes| minutes.parse().expect("it is a number"));
    let (start, most) = (Instant::now(), Duration::from_secs(60 * minutes));
    for seed in 1.. {
        for (name, target) in TARGETS {
            if let Some(input) = fuzz(name, target, seed) {
                panic!("{name} panics on {:?}, made from seed {seed}", input.escape_ascii().to_string());
            }
        }
        if start.elapsed() >= most {
            break;
        }
    }
}

#[test]
fn some_of_what_is_made_is_good_and_some_is_not() {
    for (name, target) in TARGETS {
        let mut mutator = Mutator::new(seeds(name), 2);
        let good = (0..200).filter(|_| target(&mutator.next_input())).count();
        assert!(
            (1..200).contains(&good),
            "{name}: {good} of 200 are good, so that one half of the reader is not fuzzed"
        );
    }
}

#[test]
fn the_canary_is_found() {
    assert!(fuzz("canary", canary, 1).is_some(), "{INPUTS} inputs do not find a bug that is one byte away");
}
