//! A process that may open `/dev/ekiden` for writing, without CAP_SYS_ADMIN.

use std::{collections::BTreeMap, fs::OpenOptions, io, os::fd::AsRawFd, path::Path, ptr, thread};

use anyhow::{Context, Result};
use ekiden_loader::{Access, Beside, Config, Inherit, Session, Who, choose};
use serde::Serialize;

use crate::guest_tests::config;

/// The numbers of what only root may ask, in hosts/kernel/include/ekiden_control.h.
const COMMANDS: [u32; 8] = [1, 2, 4, 5, 6, 8, 9, 12];
const CAP_SYS_ADMIN: u32 = 21;

#[derive(Serialize)]
struct IntruderReport {
    /// Why each was refused, as the number of an error; 0 where it was not. A map of a call log comes last.
    errors: Vec<i32>,
    still_running: bool,
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// From here on this thread is root without the rights of an administrator, as in a container.
fn give_up_rights() -> io::Result<()> {
    let header = CapHeader { version: 0x2008_0522, pid: 0 };
    // Effective, permitted and inheritable, of the first 32 and of the others.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: both are as large as this version says.
    if unsafe { libc::syscall(libc::SYS_capget, &header, &mut sets) } != 0 {
        return Err(io::Error::last_os_error());
    }
    sets[0].iter_mut().for_each(|set| *set &= !(1 << CAP_SYS_ADMIN));
    // SAFETY: the kernel only reads them; both are as large as this version says.
    if unsafe { libc::syscall(libc::SYS_capset, &header, &sets) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn error_of(failed: bool) -> i32 {
    if failed { io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 }
}

/// Tries everything that is root's.
fn intrude() -> Result<Vec<i32>> {
    give_up_rights().context("cannot give up rights")?;
    let device = OpenOptions::new().read(true).write(true).open("/dev/ekiden").context("cannot open the device")?;
    // Larger than any request: what is refused is not read.
    let mut request = [0_u64; 64];
    let mut errors = Vec::new();
    for command in COMMANDS {
        let sizes: Vec<u32> = match command {
            5 | 8 => vec![0],
            _ => (8..256).step_by(8).collect(),
        };
        // Whatever is not a command is ENOTTY: the right size is among them.
        for size in sizes {
            for direction in if size == 0 { vec![0_u32] } else { vec![1, 3] } {
                let number = direction << 30 | size << 16 | u32::from(b'E') << 8 | command;
                // SAFETY: the request is larger than the size says.
                let failed = unsafe { libc::ioctl(device.as_raw_fd(), number.into(), request.as_mut_ptr()) } < 0;
                errors.push(error_of(failed));
            }
        }
    }
    // SAFETY: a new map, which is never read.
    let map = unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, device.as_raw_fd(), 0) };
    errors.push(error_of(map == libc::MAP_FAILED));
    Ok(errors)
}

pub(crate) fn intruder(modules: &Path) -> Result<()> {
    let session = Session::start(&config(modules, "wfq"))?;
    // Rights are a thread's own.
    let errors = thread::spawn(intrude).join().ok().context("the intruder panicked")??;
    println!("{}", serde_json::to_string(&IntruderReport { errors, still_running: session.is_running() })?);
    Ok(())
}

#[derive(Serialize)]
struct ChooserReport {
    /// The result of each try of an ordinary user, in words: `chosen`, or why not.
    tries: BTreeMap<&'static str, String>,
    still_running: bool,
}

/// From here on this thread is an ordinary user's.
pub(crate) fn be_user(uid: u32) -> Result<()> {
    // SAFETY: plain system calls; libc's own functions would change all threads. Its files in /proc would stay root's.
    let changed = unsafe {
        libc::syscall(libc::SYS_setresgid, uid, uid, uid) == 0
            && libc::syscall(libc::SYS_setgroups, 0, ptr::null::<u32>()) == 0
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
            && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0
    };
    if changed { Ok(()) } else { Err(io::Error::last_os_error()).context("cannot become an ordinary user") }
}

/// What an ordinary user's thread, for which `before` was done, gets when it chooses the policy in a policy slot.
fn tries(slot: Option<u32>, before: impl FnOnce(i32) -> Result<()> + Send) -> Result<String> {
    const USER: u32 = 1000;
    thread::scope(|scope| {
        let tried = scope.spawn(|| -> Result<String> {
            before(nix::unistd::gettid().as_raw())?;
            be_user(USER)?;
            Ok(choose(&Who::Thread(0), slot, Inherit::Yes)
                .map_or_else(|error| error.to_string(), |_| "chosen".to_owned()))
        });
        tried.join().ok().context("the user panicked")?
    })
}

/// Who may have which policy for their tasks.
pub(crate) fn chooser(modules: &Path) -> Result<()> {
    let nothing = |_| Ok(());
    let first = Session::start(&config(modules, "wfq"))?;
    let beside = |access| Session::start(&Config { beside: Beside::Others, access, ..config(modules, "fifo") });
    let mut report = BTreeMap::new();
    report.insert("the default one", tries(Some(first.slot()), nothing)?);
    {
        let of_root = beside(Access::Root)?;
        let slot = of_root.slot();
        report.insert("root's", tries(Some(slot), nothing)?);
        let given = |tid| choose(&Who::Thread(tid), Some(slot), Inherit::Yes).map(drop).map_err(Into::into);
        report.insert("away from what root has chosen", tries(None, given)?);
        let own = |tid| -> Result<()> {
            given(tid)?;
            choose(&Who::Thread(tid), None, Inherit::No)?;
            Ok(())
        };
        report.insert("after root has taken its choice back", tries(None, own)?);
    }
    report.insert("of another group", tries(Some(beside(Access::Group(1001))?.slot()), nothing)?);
    {
        let of_group = beside(Access::Group(1000))?;
        report.insert("of the own group", tries(Some(of_group.slot()), nothing)?);
    }
    let open = beside(Access::Open)?;
    report.insert("open", tries(Some(open.slot()), nothing)?);
    let still_running = first.is_running() && open.is_running();
    println!("{}", serde_json::to_string(&ChooserReport { tries: report, still_running })?);
    Ok(())
}
