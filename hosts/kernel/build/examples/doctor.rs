//! Says what this machine lacks: `doctor [--json]`.

fn main() -> Result<(), serde_json::Error> {
    let diagnosis = ekiden_build::doctor::examine();
    match std::env::args().nth(1).as_deref() {
        Some("--json") => println!("{}", serde_json::to_string_pretty(&diagnosis)?),
        _ => print!("{diagnosis}"),
    }
    Ok(())
}
