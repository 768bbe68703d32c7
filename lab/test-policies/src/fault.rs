//! The ways in which `faulty` goes wrong.

/// How it goes wrong; the value of parameter `fault`.
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Panics.
    Panic = 0,
    /// Allocates until the arena is used up.
    Exhaust = 1,
    /// Drops the token that the call brings.
    LoseToken = 2,
    /// Gives back the token of another CPU, where there is one.
    WrongCpu = 3,
    /// Takes a lock that it holds.
    Deadlock = 4,
    /// No fault, but a nuisance: at each wake-up, the waker has the task's CPU look for work.
    Pester = 5,
    /// Turns in an empty loop.
    Loop = 6,
    /// Turns in a loop with every queue locked, so that other CPUs wait for it in calls of theirs.
    LoopLocked = 7,
    /// Calls itself without end.
    Recurse = 8,
    /// Calls itself twice each time, sixty deep.
    Branch = 9,
    /// Takes two locks in one order and then in the other, which only waits to become a deadlock.
    Disorder = 10,
    /// Fills memory with a lock held, which the next call wants.
    Hold = 11,
    /// Waits with one lock for another one, whose holder waits for the first.
    Embrace = 12,
    /// Keeps the old token of a task that has moved, beside the new one.
    KeepOld = 13,
    /// Never picks one task again.
    Starve = 14,
    /// Names CPUs that the task may not use, or that do not exist, and has them look for work.
    BadCpu = 15,
    /// Lets a task run without end.
    Slices = 16,
    /// Ends a call with a lock taken.
    KeepLock = 17,
    /// Panics with something that never comes to an end of describing itself.
    LoopInText = 18,
    /// Panics with a text without end.
    EndlessText = 19,
    /// Moves half a MiB to and fro without end.
    Copy = 20,
    /// Has all CPUs look for work, in every call from then on.
    KickAll = 21,
    /// Arms a timer of 1 ns in every call from then on, the timer's own among them.
    Timers = 22,
    /// Gives slices of 1 ns from then on.
    ShortSlices = 23,
    /// Picks nothing from then on, wishes for a task that is not there, and looks again when it hears of that.
    Livelock = 24,
    /// Gives the same worthless token each time it is asked from then on.
    Vain = 25,
    /// Gives the same worthless token as `Vain`, after a time that is nearly too long.
    Slow = 26,
    /// No fault, but a nuisance: sends every task that wakes up to CPU 0, whichever CPU was found idle for it.
    Huddle = 30,
}
