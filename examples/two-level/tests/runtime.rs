//! User-level threads over activations: without an arbiter, and with one that does what a test says.

use std::{
    collections::{HashSet, VecDeque},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::ThreadId,
    time::{Duration, Instant},
};

use ekiden_two_level::{Arbiter, Assignment, Becomes, Config, Gone, JoinHandle, Listener, Runtime, spawn, yield_now};

const LONG: Duration = Duration::from_secs(30);

/// A thread of a test. All that tests have on stacks where a thread leaves is `Send`.
fn start<T: Send + 'static>(runtime: &Runtime, does: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // SAFETY: a test has only what is `Send` on the stack of a thread that leaves.
    unsafe { runtime.spawn(does) }.unwrap()
}

fn start_more<T: Send + 'static>(does: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // SAFETY: a thread of a test starts others with what is `Send` only.
    unsafe { spawn(does) }.unwrap()
}

/// The activation that the caller is on. Not inlined, as a thread comes back on another one.
#[inline(never)]
fn here() -> ThreadId {
    std::thread::current().id()
}

fn alone(min: usize, max: usize) -> Runtime {
    Runtime::alone(Config { min, max }).unwrap()
}

fn wait_until(what: &str, is_it: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_it() {
        assert!(begin.elapsed() < LONG, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Computes until this is set, without leaving its activation.
fn compute_until(done: &AtomicBool) {
    while !done.load(SeqCst) {
        std::hint::spin_loop();
    }
}

#[test]
fn threads_run_in_the_order_in_which_they_were_started_and_take_turns() {
    let runtime = alone(1, 1);
    let order = Arc::new(Mutex::new(Vec::new()));
    let noted = order.clone();
    let all = start(&runtime, move || {
        let thread = |number| {
            let order = noted.clone();
            move || {
                for turn in 0..3 {
                    order.lock().unwrap().push((turn, number));
                    yield_now();
                }
            }
        };
        let threads: Vec<_> = (0..5).map(|number| start_more(thread(number))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    all.join().unwrap();
    let expected: Vec<_> = (0..3).flat_map(|turn| (0..5).map(move |number| (turn, number))).collect();
    assert_eq!(*order.lock().unwrap(), expected);
}

#[test]
fn a_join_returns_what_the_thread_returned_or_panicked_with() {
    let runtime = alone(2, 2);
    let outer = start(&runtime, || {
        let answers = start_more(|| "well".to_owned());
        let panics = start_more(|| {
            yield_now();
            std::panic::panic_any(17_u32);
        });
        (answers.join().unwrap(), panics.join().map_err(|panic| *panic.downcast::<u32>().unwrap()))
    });
    assert_eq!(outer.join().unwrap(), ("well".to_owned(), Err::<(), _>(17)));
    let ended = start(&runtime, || 3);
    wait_until("it ends", || ended.is_finished());
    assert_eq!(ended.join().unwrap(), 3);
}

#[test]
fn an_activation_without_threads_takes_those_of_another() {
    let runtime = alone(2, 2);
    let done = Arc::new(AtomicBool::new(false));
    let ended = done.clone();
    let others = start(&runtime, move || {
        let computes = done.clone();
        // They are in the queue of this activation, which does not get to them.
        let threads: Vec<_> = (0..20).map(|_| start_more(here)).collect();
        compute_until(&computes);
        let first = here();
        (first, threads.into_iter().map(|thread| thread.join().unwrap()).collect::<HashSet<_>>())
    });
    wait_until("they are stolen", || runtime.status().stolen > 0 && runtime.status().steps >= 20);
    ended.store(true, SeqCst);
    let (here, elsewhere) = others.join().unwrap();
    assert!(elsewhere.len() == 1 && !elsewhere.contains(&here), "{here:?} {elsewhere:?}");
}

#[test]
fn threads_that_wait_for_sockets_do_not_hold_up_others() {
    let runtime = alone(1, 2);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = start(&runtime, move || {
        let listener = Listener::new(listener).unwrap();
        let connections: Vec<_> = (0..50)
            .map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                start_more(move || {
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).unwrap();
                    // More than a socket holds, so that it waits until there is room.
                    stream.write_all(&all.repeat(200_000)).unwrap();
                    all.len()
                })
            })
            .collect();
        connections.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>()
    });
    let mut clients: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    // The last one first: all that came before it wait.
    for (number, client) in clients.iter_mut().enumerate().rev() {
        client.write_all(&[number as u8; 10]).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.len() == 2_000_000 && answer.iter().all(|byte| usize::from(*byte) == number), "{number}");
    }
    assert_eq!(served.join().unwrap(), [10; 50]);
}

#[test]
fn threads_that_have_not_ended_are_unwound_with_their_runtime() {
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let (dropped, started) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let runtime = alone(2, 2);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (counts, starts) = (Counts(dropped.clone()), started.clone());
    let waits = start(&runtime, move || {
        let _counts = counts;
        let listener = Listener::new(listener).unwrap();
        starts.fetch_add(1, SeqCst);
        listener.accept().map(|_| ())
    });
    let (counts, starts) = (Counts(dropped.clone()), started.clone());
    let yields = start(&runtime, move || {
        let _counts = counts;
        starts.fetch_add(1, SeqCst);
        loop {
            yield_now();
        }
    });
    wait_until("both run", || started.load(SeqCst) == 2);
    drop(runtime);
    assert_eq!(dropped.load(SeqCst), 2);
    assert!(waits.join().is_err());
    assert!(JoinHandle::<()>::join(yields).is_err());
}

/// An arbiter that does what the test says, and what it was told.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    enrolled: Vec<u32>,
    wanted: Vec<u32>,
    notices: VecDeque<Assignment>,
    is_gone: bool,
    bell: Option<UnixStream>,
}

struct Fake {
    said: Said,
    readable: UnixStream,
}

impl Said {
    fn arbiter(&self) -> Fake {
        let (readable, bell) = UnixStream::pair().unwrap();
        readable.set_nonblocking(true).unwrap();
        self.0.lock().unwrap().bell = Some(bell);
        Fake { said: self.clone(), readable }
    }

    fn say(&self, becomes: Becomes, which: usize) {
        let state = &mut *self.0.lock().unwrap();
        let thread = state.enrolled[which];
        state.notices.push_back(Assignment { becomes, cpu: which as u32, thread });
        state.bell.as_ref().unwrap().write_all(&[1]).unwrap();
    }

    fn enrolled(&self) -> usize {
        self.0.lock().unwrap().enrolled.len()
    }

    fn wanted(&self) -> u32 {
        *self.0.lock().unwrap().wanted.last().unwrap()
    }
}

impl AsFd for Fake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Arbiter for Fake {
    fn enroll(&mut self, thread: u32) -> Result<(), Gone> {
        self.said.0.lock().unwrap().enrolled.push(thread);
        Ok(())
    }

    fn want(&mut self, cpus: u32) -> Result<(), Gone> {
        let state = &mut *self.said.0.lock().unwrap();
        state.wanted.push(cpus);
        if state.is_gone { Err(Gone) } else { Ok(()) }
    }

    fn receive(&mut self) -> Option<Assignment> {
        let notice = self.said.0.lock().unwrap().notices.pop_front();
        if notice.is_none() {
            // Nothing is left to be heard.
            let _ = self.readable.read(&mut [0; 64]);
        }
        notice
    }

    fn is_gone(&self) -> bool {
        self.said.0.lock().unwrap().is_gone
    }
}

fn arbitrated(min: usize, max: usize) -> (Runtime, Said) {
    let said = Said::default();
    let runtime = Runtime::new(Config { min, max }, said.arbiter()).unwrap();
    wait_until("all are enrolled", || said.enrolled() == max);
    (runtime, said)
}

#[test]
fn nothing_runs_before_a_cpu_is_given_and_only_so_many_do() {
    let (runtime, said) = arbitrated(1, 3);
    let thread = start(&runtime, here);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!thread.is_finished() && runtime.status().given == 0, "{:?}", runtime.status());
    assert_eq!(said.wanted(), 1);
    said.say(Becomes::Given, 1);
    let on = thread.join().unwrap();
    let others: HashSet<ThreadId> = (0..100).map(|_| start(&runtime, here).join().unwrap()).collect();
    assert_eq!(others, HashSet::from([on]), "one activation has a CPU");
}

#[test]
fn an_activation_asked_for_its_cpu_ends_its_step_and_gives_its_threads_to_others() {
    let (runtime, said) = arbitrated(2, 2);
    said.say(Becomes::Given, 0);
    let done = Arc::new(AtomicBool::new(false));
    let (computes, queued) = (done.clone(), Arc::new(AtomicBool::new(false)));
    let is_queued = queued.clone();
    let all = start(&runtime, move || {
        let first = here();
        let threads: Vec<_> = (0..10).map(|_| start_more(here)).collect();
        is_queued.store(true, SeqCst);
        compute_until(&computes);
        yield_now();
        let continued = here();
        (first, continued, threads.into_iter().map(|thread| thread.join().unwrap()).collect::<HashSet<_>>())
    });
    wait_until("its threads wait", || queued.load(SeqCst));
    said.say(Becomes::AskedBack, 0);
    wait_until("it was heard", || runtime.status().asked_back == 1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((runtime.status().handed_over, runtime.status().steps), (0, 0), "its step lasts");
    done.store(true, SeqCst);
    wait_until("they are handed over", || runtime.status().handed_over == 11);
    said.say(Becomes::Taken, 0);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!all.is_finished(), "no activation has a CPU");
    said.say(Becomes::Given, 1);
    let (here, continued, others) = all.join().unwrap();
    assert!(continued != here && others == HashSet::from([continued]), "{here:?} {continued:?} {others:?}");
}

#[test]
fn a_cpu_that_is_given_back_wakes_its_activation_up_again() {
    let (runtime, said) = arbitrated(1, 1);
    for round in 0..20 {
        said.say(Becomes::Given, 0);
        assert_eq!(start(&runtime, move || round).join().unwrap(), round);
        said.say(if round % 2 == 0 { Becomes::AskedBack } else { Becomes::Taken }, 0);
        wait_until("it has none", || runtime.status().given == 0);
    }
}

#[test]
fn more_cpus_are_asked_for_while_threads_wait_and_fewer_when_none_do() {
    let (runtime, said) = arbitrated(1, 3);
    said.say(Becomes::Given, 0);
    let done = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..8)
        .map(|_| {
            let done = done.clone();
            start(&runtime, move || {
                while !done.load(SeqCst) {
                    yield_now();
                }
            })
        })
        .collect();
    wait_until("two are asked for", || said.wanted() == 2);
    said.say(Becomes::Given, 1);
    wait_until("three are asked for", || said.wanted() == 3);
    said.say(Becomes::Given, 2);
    done.store(true, SeqCst);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    wait_until("fewer are asked for", || said.wanted() == 2);
    said.say(Becomes::Taken, 2);
    wait_until("one is asked for", || said.wanted() == 1);
    assert_eq!(runtime.status().most, 3);
}

#[test]
fn activations_run_without_an_arbiter_that_ends() {
    let (runtime, said) = arbitrated(2, 3);
    said.0.lock().unwrap().is_gone = true;
    assert_eq!(start(&runtime, || 5).join().unwrap(), 5);
    wait_until("as many run as it had wanted", || runtime.status().given == 2);
    assert!(!runtime.status().is_arbitrated);
}
