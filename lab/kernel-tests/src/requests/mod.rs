//! A process that asks `/dev/ekiden` for anything: requests that are good, nearly good and random, with pointers to anywhere, by descriptors
//! that are copied, inherited, sent to others and closed meanwhile.

mod steps;

use std::{
    collections::BTreeMap,
    hint::spin_loop,
    io,
    os::{
        fd::RawFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    ptr, thread,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{board::Board, intruder::be_user, load::be_anywhere};

use self::steps::STEPS;

/// Where the board counts what an ordinary user got that is root's.
pub(crate) const CONTROL_GAINED: usize = 100;
const PAGE: usize = 4096;
/// Most descriptors, and most maps, that one has at a time.
const MOST: usize = 24;
/// How many ask; see `crate::device`.
const ASKERS: usize = 5;

struct Asker {
    rng: fastrand::Rng,
    board: Board,
    is_root: bool,
    number: usize,
    devices: Vec<RawFd>,
    maps: Vec<(usize, usize)>,
    /// Descriptors of queues of hints, and where each is mapped, or 0.
    queues: Vec<(RawFd, usize, usize)>,
    /// Two pages that can be written to, one that can be read, and one that is not there.
    area: usize,
    socket: UnixDatagram,
}

/// How often what was done.
pub(crate) fn done(board: Board) -> BTreeMap<&'static str, u64> {
    STEPS.iter().enumerate().map(|(place, (name, ..))| (*name, board.get(place))).collect()
}

/// The process that `crate::device` starts and kills.
pub(crate) fn asks(seed: u64, number: usize, user: u32) -> Result<()> {
    be_anywhere()?;
    let board = Board::of(&io::stdin()).context("no shared memory")?;
    if user != 0 {
        be_user(user)?;
    }
    let address = address(number)?;
    // Children of the one before may still have its socket.
    let socket = loop {
        match UnixDatagram::bind_addr(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => thread::sleep(Duration::from_millis(10)),
            socket => break socket.context("no socket")?,
        }
    };
    socket.set_nonblocking(true)?;
    let mut asker = Asker {
        rng: fastrand::Rng::with_seed(seed),
        board,
        is_root: user == 0,
        number,
        devices: Vec::new(),
        maps: Vec::new(),
        queues: Vec::new(),
        area: area().context("no memory")?,
        socket,
    };
    // The words of a request change while the kernel reads them.
    let (area, mut rng) = (asker.area, fastrand::Rng::with_seed(!seed));
    thread::spawn(move || {
        loop {
            for _ in 0..64 {
                let at = area + rng.usize(0..2 * PAGE / 4) * 4;
                // SAFETY: these two pages are always there, and all who use them know that they change.
                unsafe { ptr::write_volatile(at as *mut u32, rng.u32(0..16)) };
                spin_loop();
            }
            thread::sleep(Duration::from_micros(rng.u64(50..500)));
        }
    });
    let all: u32 = STEPS.iter().map(|(_, weight, _)| weight).sum();
    loop {
        let mut left = asker.rng.u32(0..all);
        let chosen = STEPS.iter().position(|(_, weight, _)| {
            let is_it = left < *weight;
            left = left.saturating_sub(*weight);
            is_it
        });
        let place = chosen.unwrap_or_default();
        STEPS[place].2(&mut asker);
        asker.board.add(place, 1);
        spin_loop();
    }
}

fn address(number: usize) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ekiden-asks-{number}"))
}

/// Four pages as [`Asker::area`] has them.
fn area() -> io::Result<usize> {
    // SAFETY: new pages of no other's, which nothing in Rust refers to.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(ptr::null_mut(), 4 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if pages == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::mprotect(pages.byte_add(2 * PAGE), PAGE, libc::PROT_READ);
        libc::mprotect(pages.byte_add(3 * PAGE), PAGE, libc::PROT_NONE);
        Ok(pages as usize)
    }
}
