//! A meeting of all CPUs, in every order that memory and CPUs allow (loom): the steps of `hosts/kernel/module/stop.c`. The work is done
//! while no other CPU is in a call, also if a CPU comes late to a meeting that was given up.

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
            fence,
        },
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

struct Model {
    arrived: AtomicU32,
    inside: AtomicU32,
    go: AtomicU32,
    /// What calls look at, and the work changes.
    policy: UnsafeCell<u32>,
}

// SAFETY: `policy` is changed while all others stand still; loom finds out if that is not so.
unsafe impl Sync for Model {}

/// A CPU to the one that asks.
struct Other {
    interrupt: Sender<()>,
    go: Sender<()>,
}

impl Model {
    fn new() -> Arc<Self> {
        let [arrived, inside, go] = [0, 0, 1].map(AtomicU32::new);
        Arc::new(Self { arrived, inside, go, policy: UnsafeCell::new(0) })
    }

    fn call(&self) {
        // SAFETY: loom keeps the pointer good.
        self.policy.with(|policy| unsafe { *policy });
    }

    /// A CPU that calls, and comes when an interrupt asks it to.
    fn cpu(&self, interrupts: &Receiver<()>, go: Option<&Receiver<()>>, meetings: usize) {
        for _ in 0..meetings {
            self.call();
            interrupts.recv().unwrap();
            self.stand_still(go);
            self.call();
        }
    }

    /// Two threads that spin could take turns without end, in a model, while the third one does nothing: they block.
    fn stand_still(&self, go: Option<&Receiver<()>>) {
        fence(SeqCst);
        self.arrived.fetch_add(1, Relaxed);
        match go {
            Some(go) => go.recv().unwrap(),
            None => {
                while self.go.load(Acquire) == 0 {
                    thread::yield_now();
                }
            }
        }
        self.inside.fetch_sub(1, Release);
    }

    /// Looks at most so often whether all have come. Whether the work was done.
    fn meet(&self, others: &[Other], looks: usize) -> bool {
        while self.inside.load(Acquire) != 0 {
            thread::yield_now();
        }
        self.arrived.store(0, Relaxed);
        self.go.store(0, Relaxed);
        for other in others {
            self.inside.fetch_add(1, Relaxed);
            other.interrupt.send(()).unwrap();
        }
        let mut is_done = false;
        for _ in 0..looks {
            if self.arrived.load(Acquire) == others.len() as u32 {
                // SAFETY: loom keeps the pointer good.
                self.policy.with_mut(|policy| unsafe { *policy += 1 });
                is_done = true;
                break;
            }
            thread::yield_now();
        }
        self.go.store(1, Release);
        others.iter().for_each(|other| other.go.send(()).unwrap());
        is_done
    }
}

/// Meetings one after the other, each with this many looks; then what was done is counted.
fn check(others: usize, looks: &'static [usize], preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let model = Model::new();
        let (asked, cpus): (Vec<_>, Vec<_>) = (0..others)
            .map(|_| {
                let ((interrupt, interrupts), (go, goes)) = (channel(), channel());
                let model = model.clone();
                let cpu = move || model.cpu(&interrupts, (others > 1).then_some(&goes), looks.len());
                (Other { interrupt, go }, thread::spawn(cpu))
            })
            .unzip();
        let done = looks.iter().filter(|looks| model.meet(&asked, **looks)).count();
        cpus.into_iter().for_each(|cpu| cpu.join().unwrap());
        // SAFETY: loom keeps the pointer good; all others have ended.
        model.policy.with(|policy| assert_eq!(unsafe { *policy }, done as u32));
    });
}

#[test]
fn two_cpus_meet_again_after_one_was_late() {
    check(1, &[1, 2], 4);
}

#[test]
fn three_cpus_meet() {
    check(2, &[3], 3);
}

#[test]
fn three_cpus_meet_again_after_one_was_late() {
    check(2, &[1, 2], 2);
}
