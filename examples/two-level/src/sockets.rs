//! Where user-level threads wait for sockets: one epoll instance for all activations.

use std::{
    io::{self, Read, Write},
    mem::MaybeUninit,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::{
    event::{
        EventfdFlags, Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
        eventfd,
    },
    io::Errno,
};
use slab::Slab;

use crate::{
    activation, locked,
    thread::{Left, Place, Thread, leave},
};

/// What epoll says of the descriptor that ends a sleep.
const KICK: u64 = u64::MAX;

/// Events that are taken at a time.
const EVENTS: usize = 64;

/// All sockets that are waited for.
pub(crate) struct Sockets {
    epoll: OwnedFd,
    kick: OwnedFd,
    slots: Mutex<Slab<Arc<Slot>>>,
    /// How often they were looked at.
    polls: AtomicU64,
}

/// State of a socket, and the threads that wait for it.
#[derive(Default)]
struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    /// Something has happened since a thread last asked to wait.
    happened: bool,
    waiting: Vec<Thread>,
}

impl Place for Slot {
    fn keep(&self, thread: Thread) -> Option<Thread> {
        let state = &mut *locked(&self.0);
        if std::mem::take(&mut state.happened) {
            return Some(thread);
        }
        state.waiting.push(thread);
        None
    }
}

impl Sockets {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &kick, EventData::new_u64(KICK), EventFlags::IN)?;
        Ok(Self { epoll, kick, slots: Mutex::default(), polls: AtomicU64::new(0) })
    }

    /// Looks what has happened, for so long at most if nothing has. Returns the threads that waited for it.
    pub(crate) fn poll(&self, most: Duration) -> Vec<Thread> {
        self.polls.fetch_add(1, Relaxed);
        let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let mut room = [MaybeUninit::<Event>::uninit(); EVENTS];
        let mut ready = Vec::new();
        let events = match epoll::wait(&self.epoll, &mut room, Some(&most)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return ready,
            Err(error) => panic!("epoll_wait: {error}"),
        };
        for event in events {
            let key = event.data.u64();
            // One that was closed after it was seen, or another one in its place: its threads look in vain.
            let slot = if key == KICK { None } else { locked(&self.slots).get(key as usize).cloned() };
            let Some(slot) = slot else { continue };
            let state = &mut *locked(&slot.0);
            if state.waiting.is_empty() {
                state.happened = true;
            }
            ready.append(&mut state.waiting);
        }
        ready
    }

    /// How often [`Sockets::poll`] was called.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Relaxed)
    }

    /// Ends the sleep of the activation that sleeps in [`Sockets::poll`].
    pub(crate) fn kick(&self) {
        // It cannot fail before 2^64 of them.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Has the next sleep last.
    pub(crate) fn unkick(&self) {
        // Nothing was written if it fails.
        let _ = rustix::io::read(&self.kick, &mut [0; 8]);
    }

    /// Takes all threads that wait.
    pub(crate) fn abandon(&self) -> Vec<Thread> {
        let slots: Vec<Arc<Slot>> = locked(&self.slots).iter().map(|(_, slot)| slot.clone()).collect();
        slots.iter().flat_map(|slot| std::mem::take(&mut locked(&slot.0).waiting)).collect()
    }
}

/// A socket for which a user-level thread waits without holding up its activation.
struct Source<S: AsFd> {
    socket: S,
    key: usize,
    slot: Arc<Slot>,
    sockets: Arc<Sockets>,
}

impl<S: AsFd> Source<S> {
    fn new(socket: S) -> io::Result<Self> {
        let sockets = activation::sockets();
        let slot = Arc::new(Slot::default());
        let key = locked(&sockets.slots).insert(slot.clone());
        let source = Self { socket, key, slot, sockets };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&source.sockets.epoll, &source.socket, EventData::new_u64(key as u64), flags)?;
        Ok(source)
    }

    /// Tries until it would not block.
    fn until_done<T>(&self, mut what: impl FnMut(&S) -> io::Result<T>) -> io::Result<T> {
        loop {
            match what(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => leave(Left::Waits(self.slot.clone())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl<S: AsFd> Drop for Source<S> {
    fn drop(&mut self) {
        // It is not there if it could not be added.
        let _ = epoll::delete(&self.sockets.epoll, &self.socket);
        drop(locked(&self.sockets.slots).try_remove(self.key));
    }
}

/// A listening socket, for user-level threads.
pub struct Listener(Source<TcpListener>);

impl Listener {
    /// Takes a socket that listens. Only a user-level thread may call this, and the methods of it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self(Source::new(listener)?))
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// As that of the standard library.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (stream, from) = self.0.until_done(TcpListener::accept)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok((Stream(Source::new(stream)?), from))
    }
}

/// A connection, for user-level threads.
pub struct Stream(Source<TcpStream>);

impl Read for Stream {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.until_done(|mut stream| stream.read(room))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.until_done(|mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
