//! Runs a policy while a command runs. `hold POLICY|bpf|none MODULE_DIR CMD…`
use ekiden_loader::*;
fn main() {
    let mut args = std::env::args().skip(1);
    let policy = args.next().unwrap();
    let dir = std::path::PathBuf::from(args.next().unwrap());
    let cmd: Vec<String> = args.collect();
    let run = || std::process::Command::new(&cmd[0]).args(&cmd[1..]).status().unwrap();
    match policy.as_str() {
        "none" => {
            run();
        }
        "bpf" => {
            let b = Baseline::start(ekiden_loader::Queues::PerCpu).unwrap();
            run();
            println!("still {}", b.is_running());
        }
        _ => {
            let c = Config::new(&policy, vec![dir.join("ekiden.ko"), dir.join(format!("ekiden_{policy}.ko"))]);
            match Session::start(&c) {
                Ok(s) => {
                    run();
                    println!("still {} {:?}", s.is_running(), Status::read().unwrap());
                }
                Err(e) => println!("ERR {e}"),
            }
        }
    }
}
