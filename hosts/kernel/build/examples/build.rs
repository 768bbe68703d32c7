//! Builds the modules of a project's policies: `build RELEASE|running [PROJECT [POLICY…]]`. The release may be a beginning
//! of one, such as `7.3.4`; the project is this checkout by default.
use ekiden_build::{Builder, Checkout, Policy, Project, Target};
use ekiden_vm::Cache;
use std::{path::PathBuf, time::Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let release = args.next().ok_or("usage: build RELEASE|running [PROJECT [POLICY…]]")?;
    let root = args
        .next()
        .map_or_else(|| Checkout::find().map(|checkout| checkout.root().to_owned()), |path| Ok(PathBuf::from(path)));
    let cache = Cache::from_env()?;
    let progress = &mut |line: &str| eprintln!("{line}");
    let target = match release.as_str() {
        "running" => Target::running()?,
        release => Target::fetched(&ekiden_vm::fetch(&cache, release, progress)?),
    };
    let project = Project::open(&root?)?;
    let mut policies: Vec<Policy> = Vec::new();
    for name in args {
        policies.push(project.policy(&name)?.clone());
    }
    if policies.is_empty() {
        policies = project.policies().to_vec();
    }
    let start = Instant::now();
    let builder = Builder::new(&cache, progress)?;
    let modules = builder.build(&target, &project, &policies, progress).map_err(|error| error.to_string())?;
    println!(
        "rustc {}, {:.1?}, rebuilt: {}",
        builder.toolchain().release(),
        start.elapsed(),
        modules.rebuilt.join(" ")
    );
    for (_, module) in
        [("", &modules.core)].into_iter().chain(modules.policies.iter().map(|(name, module)| (name.as_str(), module)))
    {
        println!("{}", module.display());
    }
    Ok(())
}
