//! Writes a project with bodies of a seed: `write DIRECTORY SEED FIRST COUNT [simulator]`. `ekiden build --dir DIRECTORY` makes a module of it.
use ekiden_hostile::{Host, write};
use std::{collections::BTreeSet, error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [directory, seed, first, count, rest @ ..] = &args[..] else {
        return Err("usage: write DIRECTORY SEED FIRST COUNT [simulator]".into());
    };
    let host = if rest.iter().any(|word| word == "simulator") { Host::Simulator } else { Host::Kernel };
    let (first, count): (u64, u64) = (first.parse()?, count.parse()?);
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    write(directory.as_ref(), &checkout, seed.parse()?, first..first + count, &BTreeSet::new(), host)?;
    Ok(())
}
