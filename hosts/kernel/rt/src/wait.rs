//! How a call waits for another one: `ekiden.ko` keeps the time and the fuel (hosts/kernel/module/wait.c).

/// What it keeps meanwhile. `struct ekiden_wait` in C.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Wait(pub [u64; 4]);

/// It waits on.
pub const GO_ON: u32 = 0;
/// It has waited for longer than any call takes.
pub const TOO_LONG: u32 = 1;

unsafe extern "C" {
    fn ekiden_wait_begin(wait: *mut Wait);
    fn ekiden_wait_look(wait: *mut Wait) -> u32;
    fn ekiden_wait_end(wait: *const Wait);
}

impl Wait {
    /// The call on this CPU, which it keeps, begins to wait. It burns no fuel from here on.
    pub fn begin() -> Self {
        let mut wait = Self::default();
        // SAFETY: it writes a `struct ekiden_wait`, which `wait` is by its layout, and keeps no pointer.
        unsafe { ekiden_wait_begin(&mut wait) };
        wait
    }

    /// It has looked once more: [`GO_ON`], [`TOO_LONG`], or anything else if there is nothing left to wait for.
    pub fn look(&mut self) -> u32 {
        // SAFETY: `self` was filled in by `begin`, and is this call's alone while it is changed.
        unsafe { ekiden_wait_look(self) }
    }

    /// It waits no more, and has the fuel that it had.
    pub fn end(&self) {
        // SAFETY: `self` was filled in by `begin`, and is only read.
        unsafe { ekiden_wait_end(self) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_fakes::{PATIENCE, calls};

    #[test]
    fn a_wait_keeps_what_the_kernel_keeps_in_it_from_look_to_look() {
        calls();
        PATIENCE.set(2);
        let mut wait = Wait::begin();
        assert_eq!([wait.look(), wait.look(), wait.look()], [GO_ON, GO_ON, TOO_LONG]);
        wait.end();
        PATIENCE.set(u64::MAX);
        let of = |looks: u64| [1000, looks, 0, 0];
        let expected = [("begin", of(0)), ("look", of(0)), ("look", of(1)), ("look", of(2)), ("end", of(3))];
        assert_eq!(calls(), expected);
    }
}
