//! What a virtual machine looks like, and the QEMU arguments that make it so.

use crate::{Error, Result};
use std::path::PathBuf;

/// With [`Mode::Parallel`], this many CPUs may share a processor of this machine.
const PARALLEL_CPUS: u32 = 8;

/// Description of a virtual machine.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory, shared evenly among the NUMA nodes.
    pub memory_mib: u32,
    /// NUMA nodes; each is a socket of its own.
    pub numa_nodes: u32,
    /// How instructions are executed.
    pub mode: Mode,
    /// With [`Mode::Icount`], an instruction takes 2 to the power of this many nanoseconds of the guest's time. With 0 its clock is
    /// its instruction counter, which costs are measured with; with 3 a guest's second takes an eighth of the work.
    pub icount_shift: u32,
    /// In a QEMU that shares time fairly among CPUs that take turns, see [`Qemu::FAIR_TURNS`](crate::Qemu::FAIR_TURNS), fetched if none is
    /// installed. Where it is judged how long tasks wait, anything else says nothing.
    pub fair_turns: bool,
    /// Directory of this machine that is `/host` in the guest, writable from both sides.
    pub share_dir: Option<PathBuf>,
    /// A file system image that the guest may read as `/dev/vda`.
    pub disk: Option<PathBuf>,
    /// The program that is the guest's first process, `ekiden-guest`; by default the one beside the running program. `EKIDEN_GUEST` comes
    /// before it.
    pub init: Option<PathBuf>,
    /// Programs of this machine to have in the guest's `/bin`, each with its libraries. They also serve as the list of
    /// libraries that programs under `/host` may need.
    pub programs: Vec<PathBuf>,
    /// Added to the kernel's command line.
    pub cmdline: String,
    /// How long booting may take by the host's clock.
    pub boot_timeout: std::time::Duration,
}

impl Default for VmSpec {
    fn default() -> Self {
        Self {
            cpus: 2,
            memory_mib: 1024,
            numa_nodes: 1,
            mode: Mode::Auto,
            icount_shift: 0,
            fair_turns: false,
            share_dir: None,
            disk: None,
            init: None,
            programs: Vec::new(),
            cmdline: String::new(),
            boot_timeout: std::time::Duration::from_secs(120),
        }
    }
}

/// How instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// [`Mode::Kvm`] if it really works here, else [`Mode::Icount`].
    Auto,
    /// The processor runs it: fast.
    Kvm,
    /// Emulated, the guest's clock counts instructions: exact, the same on every machine.
    Icount,
    /// Emulated, each CPU in a thread of its own, the guest's clock follows the host's: CPUs really run at once, as
    /// long as this machine has processors for them. For correctness; what things cost there says nothing. Needs QEMU
    /// 10.0 or newer, see [`crate::Qemu`].
    Parallel,
}

impl VmSpec {
    /// Checks what QEMU would refuse with a riddle.
    pub fn check(&self) -> Result<()> {
        let wrong = if self.cpus == 0 || self.cpus > 255 {
            "cpus must be 1 to 255".to_owned()
        } else if self.numa_nodes == 0 || self.cpus % self.numa_nodes != 0 {
            format!("{} CPUs cannot be split evenly into {} NUMA nodes", self.cpus, self.numa_nodes)
        } else if self.memory_mib / self.numa_nodes < 128 || self.memory_mib % self.numa_nodes != 0 {
            format!(
                "{} MiB in {} NUMA nodes: each needs the same whole number of MiB, 128 at least",
                self.memory_mib, self.numa_nodes
            )
        } else if self.mode == Mode::Parallel && self.cpus > parallel_cpus() {
            format!(
                "{} emulated CPUs at once are too many for this machine, on which at most {} make sense: CPUs that wait for each other \
                 would stand still; take fewer, or --icount, where they take turns",
                self.cpus,
                parallel_cpus()
            )
        } else if self.icount_shift > 10 {
            "icount_shift must be 0 to 10".to_owned()
        } else if self.share_dir.as_ref().is_some_and(|share| !share.is_dir()) {
            "the directory to share does not exist".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Spec(wrong))
    }

    /// QEMU's arguments for the processors, the memory and the clock; devices and files are not here.
    pub(crate) fn machine_args(&self, mode: Mode) -> Vec<String> {
        let per_node = self.cpus / self.numa_nodes;
        let mut args = vec!["-machine q35".to_owned()];
        // An emulator takes an instruction for each byte that `rep movsb` copies. Where costs are not exact anyway, the kernel is
        // told that it had better copy words: a load of a policy takes three quarters of the time then. Wide vectors are as dear.
        let is_exact = self.icount_shift == 0;
        let words = "-cpu max,-erms,-fsrm,-avx,-avx2,-xsave";
        args.push(match mode {
            Mode::Kvm => "-accel kvm -cpu host".to_owned(),
            Mode::Parallel => format!("-accel tcg,thread=multi {words}"),
            Mode::Auto | Mode::Icount => {
                // A kernel that knows of a hypervisor takes spin locks with test-and-set, and one of two CPUs may not have one for a tenth
                // of a second. Beyond two CPUs queued locks are worse: a waiter needs a turn of each CPU before it.
                let locks = if self.fair_turns && self.cpus <= 2 { ",-hypervisor,-monitor" } else { "" };
                let cpu = if is_exact { "-cpu max".to_owned() } else { format!("{words}{locks}") };
                format!("-accel tcg,thread=single -icount shift={},sleep=off {cpu}", self.icount_shift)
            }
        });
        args.push(format!("-smp {},sockets={},cores={per_node},threads=1", self.cpus, self.numa_nodes));
        args.push(format!("-m {}M", self.memory_mib));
        for node in 0..self.numa_nodes {
            // The share's server reads and writes the guest's memory, hence a shared memory file.
            args.push(format!(
                "-object memory-backend-memfd,id=mem{node},size={}M,share=on",
                self.memory_mib / self.numa_nodes
            ));
            args.push(format!(
                "-numa node,nodeid={node},memdev=mem{node},cpus={}-{}",
                node * per_node,
                (node + 1) * per_node - 1
            ));
        }
        args.iter().flat_map(|arg| arg.split(' ')).map(str::to_owned).collect()
    }

    /// The kernel's command line.
    pub(crate) fn kernel_args(&self, mode: Mode) -> String {
        // The last two save instructions while booting: self-tests of timer and cryptography.
        let mut line = "console=ttyS0 panic=-1 loglevel=7 rdinit=/init no_timer_check cryptomgr.notests=1".to_owned();
        // Every half second two CPUs compare their counters, and wait for each other with interrupts off: 5,000 times PAUSE before they
        // look at the clock. Where CPUs take turns, PAUSE ends a turn: that was six to ninety seconds of the guest's time, after which
        // the kernel called it a soft lockup and took the policy out. Emulated counters are one counter.
        if mode != Mode::Kvm {
            line.push_str(" tsc=nowatchdog");
        }
        if !self.cmdline.is_empty() {
            line.push(' ');
            line.push_str(&self.cmdline);
        }
        line
    }
}

/// How many CPUs a guest in [`Mode::Parallel`] may have here. With more, one that spins for another spins for many of
/// the host's turns.
fn parallel_cpus() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(processors).unwrap_or(u32::MAX).saturating_mul(PARALLEL_CPUS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(spec: &VmSpec, mode: Mode, expected: Expect) {
        let args = spec.machine_args(mode).join(" ").replace(" -", "\n-");
        expected.assert_eq(&format!("{args}\n{}\n", spec.kernel_args(mode)));
    }

    #[test]
    fn where_nothing_is_measured_instructions_are_cheap_and_locks_fair() {
        let args = VmSpec { icount_shift: 3, ..VmSpec::default() }.machine_args(Mode::Icount).join(" ");
        assert!(args.contains("-cpu max,-erms,-fsrm,-avx,-avx2,-xsave -smp"), "{args}");
        let two = VmSpec { icount_shift: 3, fair_turns: true, ..VmSpec::default() };
        let four = VmSpec { cpus: 4, ..two.clone() };
        let hides_hypervisor = |spec: &VmSpec| spec.machine_args(Mode::Icount).join(" ").contains("-hypervisor");
        assert!(hides_hypervisor(&two) && !hides_hypervisor(&four));
    }

    #[test]
    fn two_cpus_count_instructions() {
        check(
            &VmSpec::default(),
            Mode::Icount,
            expect![[r#"
                -machine q35
                -accel tcg,thread=single
                -icount shift=0,sleep=off
                -cpu max
                -smp 2,sockets=1,cores=2,threads=1
                -m 1024M
                -object memory-backend-memfd,id=mem0,size=1024M,share=on
                -numa node,nodeid=0,memdev=mem0,cpus=0-1
                console=ttyS0 panic=-1 loglevel=7 rdinit=/init no_timer_check cryptomgr.notests=1 tsc=nowatchdog
            "#]],
        );
    }

    #[test]
    fn every_numa_node_has_its_cpus_and_memory() {
        let spec = VmSpec { cpus: 8, numa_nodes: 2, memory_mib: 2048, cmdline: "nokaslr".into(), ..VmSpec::default() };
        check(
            &spec,
            Mode::Kvm,
            expect![[r#"
                -machine q35
                -accel kvm
                -cpu host
                -smp 8,sockets=2,cores=4,threads=1
                -m 2048M
                -object memory-backend-memfd,id=mem0,size=1024M,share=on
                -numa node,nodeid=0,memdev=mem0,cpus=0-3
                -object memory-backend-memfd,id=mem1,size=1024M,share=on
                -numa node,nodeid=1,memdev=mem1,cpus=4-7
                console=ttyS0 panic=-1 loglevel=7 rdinit=/init no_timer_check cryptomgr.notests=1 nokaslr
            "#]],
        );
    }

    #[test]
    fn parallel_cpus_have_threads_of_their_own_and_no_counted_clock() {
        check(
            &VmSpec { cpus: 4, icount_shift: 3, ..VmSpec::default() },
            Mode::Parallel,
            expect![[r#"
                -machine q35
                -accel tcg,thread=multi
                -cpu max,-erms,-fsrm,-avx,-avx2,-xsave
                -smp 4,sockets=1,cores=4,threads=1
                -m 1024M
                -object memory-backend-memfd,id=mem0,size=1024M,share=on
                -numa node,nodeid=0,memdev=mem0,cpus=0-3
                console=ttyS0 panic=-1 loglevel=7 rdinit=/init no_timer_check cryptomgr.notests=1 tsc=nowatchdog
            "#]],
        );
    }

    #[test]
    fn more_parallel_cpus_than_this_machine_can_run_are_refused() {
        let spec = |cpus, mode| VmSpec { cpus, mode, ..VmSpec::default() };
        let most = parallel_cpus().min(254);
        spec(most, Mode::Parallel).check().unwrap();
        spec(most + 1, Mode::Icount).check().unwrap();
        if most < 254 {
            let error = spec(most + 1, Mode::Parallel).check().unwrap_err().to_string();
            assert!(error.contains(&format!("at most {most} make sense")), "{error}");
        }
    }

    #[test]
    fn an_uneven_split_is_refused_with_the_reason() {
        let spec = VmSpec { cpus: 3, numa_nodes: 2, ..VmSpec::default() };
        expect!["bad machine: 3 CPUs cannot be split evenly into 2 NUMA nodes"]
            .assert_eq(&spec.check().unwrap_err().to_string());
    }
}
