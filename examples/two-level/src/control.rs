//! The thread beside activations: it hears what the arbiter says while they all sleep, and asks for more or fewer CPUs.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    fd::OwnedFd,
    io::Errno,
};

use crate::{
    Shared,
    arbiter::{Arbiter, Nothing},
    estimate::{Estimator, Seen},
    locked,
};

/// How often run queues are looked at.
const TICK: Duration = Duration::from_millis(10);

/// How often the number of CPUs is changed at most, as in Arachne.
const PERIOD: Duration = Duration::from_millis(50);

/// What the thread waits for.
pub(crate) fn watch(shared: &Shared, ends: &impl AsFd) -> io::Result<OwnedFd> {
    let watched = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&watched, ends, EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&watched, locked(&shared.arbiter).as_fd(), EventData::new_u64(1), EventFlags::IN)?;
    Ok(watched)
}

/// Runs until the runtime ends.
pub(crate) fn run(shared: &Arc<Shared>, watched: &OwnedFd, estimator: Estimator) {
    let mut control =
        Control { shared, estimator, looks: 0, runnable: 0.0, idle_ns: Vec::new(), at: Instant::now(), polls: 0 };
    control.begin();
    let mut ticked = Instant::now();
    while !shared.is_ending() {
        let left = TICK.saturating_sub(ticked.elapsed());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match epoll::wait(watched, &mut [MaybeUninit::<Event>::uninit(); 2], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("epoll_wait: {error}"),
        }
        shared.listen();
        if ticked.elapsed() >= TICK {
            ticked = Instant::now();
            control.tick();
        }
    }
}

struct Control<'a> {
    shared: &'a Shared,
    estimator: Estimator,
    /// Since the last estimate: how often run queues were looked at, and for how many threads that ran or could run there was a CPU each time.
    looks: u32,
    runnable: f64,
    idle_ns: Vec<u64>,
    at: Instant,
    polls: u64,
}

impl Control<'_> {
    fn begin(&mut self) {
        let now_ns = self.shared.now_ns();
        self.idle_ns = self.shared.activations.iter().map(|it| it.idle_ns(now_ns)).collect();
        self.at = Instant::now();
        (self.looks, self.runnable) = (0, 0.0);
    }

    fn tick(&mut self) {
        let shared = self.shared;
        let given = shared.given();
        if given > 0 {
            let running = shared.activations.iter().filter(|it| it.may_run.load(Relaxed) && !it.is_idle()).count();
            self.runnable += (running + shared.threads()) as f64 / given as f64;
            self.looks += 1;
        }
        // All that are awake are in a long step, and others could look at sockets.
        let polls = shared.sockets.polls();
        if polls == self.polls && shared.sleepers.none_polls() {
            shared.sleepers.wake_one(&shared.sockets);
        }
        self.polls = polls;
        if self.at.elapsed() >= PERIOD && self.looks > 0 {
            self.estimate(given);
            self.begin();
        }
    }

    fn estimate(&mut self, given: usize) {
        let shared = self.shared;
        let (now_ns, lasted_ns) = (shared.now_ns(), self.at.elapsed().as_nanos() as f64);
        let used_ns = |(at, it): (usize, &crate::activation::Activation)| {
            let idle_ns = it.idle_ns(now_ns).saturating_sub(self.idle_ns[at]) as f64;
            if it.may_run.load(Relaxed) { (lasted_ns - idle_ns).max(0.0) } else { 0.0 }
        };
        let used = shared.activations.iter().enumerate().map(used_ns).sum::<f64>() / lasted_ns;
        let seen = Seen { given, used, load_factor: self.runnable / f64::from(self.looks) };
        let wanted = self.estimator.wanted(seen) as u32;
        if shared.wanted.swap(wanted, Relaxed) != wanted {
            shared.tell(|arbiter| arbiter.want(wanted));
        }
    }
}

impl Shared {
    /// Has the arbiter told something. If it has gone, activations run without one from now on.
    pub(crate) fn tell(&self, what: impl Fn(&mut dyn Arbiter) -> Result<(), crate::Gone>) {
        let arbiter = &mut *locked(&self.arbiter);
        if what(arbiter.as_mut()).is_err() {
            self.go_on_alone(arbiter);
        }
        self.hear(arbiter.as_mut());
    }

    /// Hears what the arbiter has said, unless another thread does that now.
    pub(crate) fn listen(&self) {
        let Ok(mut arbiter) = self.arbiter.try_lock() else { return };
        if arbiter.is_gone() {
            self.go_on_alone(&mut arbiter);
        }
        self.hear(arbiter.as_mut());
    }

    fn hear(&self, arbiter: &mut dyn Arbiter) {
        use ekiden_policies::Becomes;
        while let Some(notice) = arbiter.receive() {
            let is_it = |it: &crate::activation::Activation| it.tid.load(Relaxed) == notice.thread;
            let Some(which) = self.activations.iter().position(is_it) else { continue };
            self.set_may_run(which, notice.becomes == Becomes::Given);
            let given = self.given() as u32;
            self.most.fetch_max(given, Relaxed);
            match notice.becomes {
                Becomes::AskedBack => self.asked_back.fetch_add(1, Relaxed),
                Becomes::Given | Becomes::Taken => 0,
            };
        }
    }

    fn go_on_alone(&self, arbiter: &mut Box<dyn Arbiter>) {
        eprintln!("the arbiter has ended: activations run as any other threads from now on");
        let mut nothing = Nothing::new().expect("one more descriptor, in the place of the queue's");
        let told = nothing.want(self.wanted.load(Relaxed));
        let mut tids = self.activations.iter().map(|it| it.tid.load(Relaxed)).filter(|tid| *tid != 0);
        let enrolled = tids.try_for_each(|tid| nothing.enroll(tid));
        assert_eq!((told, enrolled), (Ok(()), Ok(())), "nothing does not go");
        self.activations.iter().enumerate().for_each(|(which, _)| self.set_may_run(which, false));
        self.is_arbitrated.store(false, Relaxed);
        *arbiter = Box::new(nothing);
    }
}
