//! The program `ekiden`, with the policies that come with it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ekiden_cli::main(&[])
}
