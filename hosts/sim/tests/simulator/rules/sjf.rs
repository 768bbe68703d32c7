//! Shortest job first: tasks that had short runs go before those with long ones, for a while.

use ekiden_policies::{GlobalFifo, Sjf};

use super::{MS, US, cpu_ns, run, sleeper, wait_us};

fn long(count: u32) -> impl Iterator<Item = super::TaskSpec> {
    (0..count).map(|number| sleeper(&format!("long{number}"), 5 * MS, 10 * US))
}

#[test]
fn a_task_with_short_runs_waits_for_the_one_that_runs_only() {
    let tasks = || long(8).chain([sleeper("short", 100 * US, 2 * MS)]).collect();
    let (sjf, fifo) = (run::<Sjf>(1, "", 2_000, tasks()), run::<GlobalFifo>(1, "", 2_000, tasks()));
    let (first, last) = (wait_us(&sjf, "short"), wait_us(&fifo, "short"));
    assert!(first < 5_000.0, "{first} us");
    assert!(last > 6.0 * first, "{last} us under a FIFO");
}

#[test]
fn a_long_task_runs_when_it_has_waited_for_long_enough() {
    let short = (0..30).map(|number| sleeper(&format!("short{number}"), MS, 20 * MS));
    let tasks: Vec<_> = short.chain([sleeper("long", 20 * MS, MS)]).collect();
    let runs = |ageing: u32| cpu_ns(&run::<Sjf>(1, &format!("ageing={ageing}"), 8_000, tasks.clone()), "long") / MS;
    // Its run is longer by 19 ms: with 100, it waits for up to 1.9 s each time.
    let (soon, usual) = (runs(10), runs(100));
    assert!((60..=140).contains(&usual), "{usual} ms of 8 s");
    assert!(soon > 3 * usual, "{soon} ms of 8 s, {usual} usually");
}

#[test]
fn without_ageing_it_is_first_come_first_served() {
    let tasks = || long(8).chain([sleeper("short", 100 * US, 2 * MS)]).collect();
    let (sjf, fifo) = (run::<Sjf>(1, "ageing=0", 1_000, tasks()), run::<GlobalFifo>(1, "", 1_000, tasks()));
    assert_eq!(sjf.report.tasks, fifo.report.tasks);
}
