//! Guests for tests: booted when they are first needed, ended with the program.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use crate::{
    test_guest::{Machine, TestGuest},
    turns,
};

/// How often a test may run again because of its emulator or its kernel.
const OUTSIDE_FAULTS_MAX: usize = 5;

/// A test and what is known of it beforehand.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    /// The guest that it runs in.
    pub(crate) machine: Machine,
    /// About how long it takes: the longest begin first.
    pub(crate) seconds: u32,
    pub(crate) is_ignored: bool,
    pub(crate) run: &'static (dyn Fn(&TestGuest) + Sync),
}

/// The tests of a file: the machine, then each function with the seconds that it takes.
macro_rules! tests {
    ($($machine:expr => { $($seconds:literal $test:ident),+ $(,)? })+) => {
        pub(crate) const TESTS: &[crate::pool::Test] = &[$($(crate::pool::Test {
            name: stringify!($test),
            machine: $machine,
            seconds: $seconds,
            is_ignored: false,
            run: &$test,
        }),+),+];
    };
}
pub(crate) use tests;

/// The guests that no test uses at the moment.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<(Machine, TestGuest)>>);

impl Pool {
    /// Runs a test in a guest of its machine. It runs again in another guest if that one fell over a fault of its emulator or its
    /// kernel.
    pub(crate) fn run(&self, test: &Test) -> Result<(), String> {
        let mut left = OUTSIDE_FAULTS_MAX;
        loop {
            let mut outside_fault = None;
            let result = self.try_to_run(test, &mut outside_fault);
            let Some(fault) = outside_fault.filter(|_| left > 0) else { return result };
            left -= 1;
            println!("again: {} in another guest, as the last one fell over {fault}", test.name);
        }
    }

    /// The guest of a test that fails is ended: what its kernel said belongs to that test.
    fn try_to_run(&self, test: &Test, outside_fault: &mut Option<String>) -> Result<(), String> {
        let start = Instant::now();
        let guest = panic::catch_unwind(AssertUnwindSafe(|| self.take(test.machine))).map_err(words)?;
        let booted = start.elapsed();
        let before = guest.processor_seconds();
        turns::begin(test.name);
        let result = panic::catch_unwind(AssertUnwindSafe(|| (test.run)(&guest))).map_err(words);
        println!(
            "time: {} {:.1} s, {:.1} s of a processor, {:.1} s until its guest was there",
            test.name,
            start.elapsed().as_secs_f64(),
            guest.processor_seconds() - before,
            booted.as_secs_f64()
        );
        if result.is_ok() {
            println!("{}: timers were held back: {}", test.name, guest.timers_held_back());
            match guest.repaired() {
                0 => {}
                times => println!("{}: faults of QEMU that its guest has had repaired: {times}", test.name),
            }
        }
        if result.is_ok() {
            self.idle().push((test.machine, guest));
        } else {
            println!("what {} has left is in {}", test.name, guest.keep(test.name).display());
            *outside_fault = guest.outside_fault();
        }
        result
    }

    /// Ends all guests.
    pub(crate) fn end(&self) {
        self.idle().clear();
    }

    fn take(&self, machine: Machine) -> TestGuest {
        let guest = {
            let mut idle = self.idle();
            idle.iter().position(|(of, _)| *of == machine).map(|at| idle.swap_remove(at).1)
        };
        guest.unwrap_or_else(|| machine.boot())
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Machine, TestGuest)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a panic said. The default hook has printed it with its place.
fn words(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map_or_else(|| "it panicked".to_owned(), |text| (*text).to_owned()),
    }
}
