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
        // SAFETY: fills in what it is given.
        unsafe { ekiden_wait_begin(&mut wait) };
        wait
    }

    /// It has looked once more: [`GO_ON`], [`TOO_LONG`], or anything else if there is nothing left to wait for.
    pub fn look(&mut self) -> u32 {
        // SAFETY: changes what it has filled in.
        unsafe { ekiden_wait_look(self) }
    }

    /// It waits no more, and has the fuel that it had.
    pub fn end(&self) {
        // SAFETY: reads what it has filled in.
        unsafe { ekiden_wait_end(self) };
    }
}
