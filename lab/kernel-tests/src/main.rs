//! Runs inside the guest of the kernel tests: puts policies into the kernel, has them go wrong, and says what came of
//! it, one line of JSON per guest test.

mod agent;
mod agent_groups;
mod agent_upgrades;
mod beyond;
mod board;
mod bound;
mod comings;
mod commands;
mod device;
mod due;
mod figures;
mod generated;
mod groups;
mod guest_tests;
mod impostor;
mod interrupted;
mod intruder;
mod kfunc_caller;
mod latency_probe;
mod list;
mod load;
mod neighbour;
mod planted;
mod processes;
mod queues;
mod quotas;
mod races;
mod recordings;
mod requests;
mod saves;
mod seen;
mod several;
mod still;
mod storm;
mod task_params;
mod texts;
mod trips;
mod upgrades;
mod victim;
mod watches;

use std::thread;

use clap::Parser as _;
use ekiden_guest_test::{Arguments, GuestTest, Request, To};

fn main() -> anyhow::Result<()> {
    let Request { modules, guest_test } = Arguments::parse().request()?;
    let modules = &modules;
    let is_anywhere = matches!(
        guest_test,
        GuestTest::Child { .. }
            | GuestTest::Hold { .. }
            | GuestTest::AgentHolds { .. }
            | GuestTest::List { .. }
            | GuestTest::Generated { .. }
            | GuestTest::AllAtOnce(_)
            | GuestTest::Affinities { .. }
            | GuestTest::LastTimers { .. }
            | GuestTest::Beside { .. }
            | GuestTest::Trips { .. }
            | GuestTest::Victim { .. }
            | GuestTest::VictimWorks { .. }
            | GuestTest::NeighbourLives { .. }
            | GuestTest::Exact { .. }
            | GuestTest::Throttled { .. }
            | GuestTest::Device { .. }
            | GuestTest::DeviceAsks { .. }
    );
    if !is_anywhere && thread::available_parallelism()?.get() > 1 {
        load::stay_on_cpu_1()?;
    }
    match guest_test {
        GuestTest::AgentWorks { messages, rounds, policy, recordings } => {
            agent::works(messages, rounds, policy.as_deref(), &recordings)
        }
        GuestTest::AgentEnds { flight } => agent::ends(&flight),
        GuestTest::AgentGroups { policy, messages, idle } => agent_groups::agent_groups(&policy, messages, idle),
        GuestTest::AgentAsks => agent_groups::agent_asks(),
        GuestTest::AgentUpgrades { rounds, recording } => agent_upgrades::upgrades(rounds, &recording),
        GuestTest::AgentRefuses => agent::refuses(),
        GuestTest::AgentHolds { policy, params, flight } => agent::holds(&policy, &params, &flight),
        GuestTest::List { rounds, only, beside, part } => list::list(modules, rounds, &only, beside, part),
        GuestTest::Generated { first, from, count } => generated::generated(modules, first, from, count),
        GuestTest::Faults(panics) => guest_tests::faults(modules, &panics),
        GuestTest::Comings { rounds } => comings::comings(modules, rounds),
        GuestTest::Affinities { policy, seconds } => races::affinities(modules, &policy, seconds),
        GuestTest::LastTimers { rounds } => races::last_timers(modules, rounds),
        GuestTest::Reload { rounds, policies } => guest_tests::reload(modules, rounds, &policies),
        GuestTest::Storm { policy, neighbour } => guest_tests::storm(modules, &policy, neighbour),
        GuestTest::Victim { policies, rounds, seconds, seed } => {
            victim::beside(modules, &policies, rounds, seconds, seed)
        }
        GuestTest::Device { seconds, seed } => device::device(modules, seconds, seed),
        GuestTest::DeviceAsks { seed, number, user } => requests::asks(seed, number, user),
        GuestTest::VictimWorks { group } => victim::works(&group),
        GuestTest::NeighbourLives { seed, group } => neighbour::lives(seed, &group),
        GuestTest::AllAtOnce(asked) => storm::storm_of_all(modules, asked),
        GuestTest::Refusals => guest_tests::refusals(modules),
        GuestTest::Upgrades { rounds, patience_us, policies } => {
            upgrades::upgrades(modules, rounds, patience_us, &policies)
        }
        GuestTest::RefusedUpgrades => upgrades::refused_upgrades(modules),
        GuestTest::Versions => upgrades::versions(modules),
        GuestTest::Converts => upgrades::converts(modules),
        GuestTest::FaultyUpgrades => upgrades::faulty_upgrades(modules),
        GuestTest::Several { policy } => several::several(modules, &policy),
        GuestTest::Claimed => several::claimed(modules),
        GuestTest::Shares => several::shares(modules),
        GuestTest::TaskParams => task_params::task_params(modules),
        GuestTest::Figures => figures::figures(modules),
        GuestTest::FiguresInAgent => figures::figures_in_agent(),
        GuestTest::Queues => queues::queues(modules),
        GuestTest::Seen => seen::seen(modules),
        GuestTest::Alone(panics) => several::alone(modules, &panics),
        GuestTest::Attached => guest_tests::attached(modules),
        GuestTest::Hold { policy, beside, command } => guest_tests::hold(modules, &policy, beside, &command),
        GuestTest::Leaving => guest_tests::leaving(modules),
        GuestTest::Away { policy } => guest_tests::away(modules, &policy),
        GuestTest::Recorded { policy, to, seconds } => recordings::recorded(modules, &policy, &to, seconds),
        GuestTest::Flown(To { to }) => recordings::flown(modules, &to),
        GuestTest::TakenOver(To { to }) => recordings::taken_over(modules, &to),
        GuestTest::Switched(To { to }) => recordings::switched(modules, &to),
        GuestTest::Woken(To { to }) => recordings::woken(modules, &to),
        GuestTest::Groups { policy } => groups::groups(modules, policy.as_deref()),
        GuestTest::Grouped { policy } => groups::grouped(modules, &policy),
        GuestTest::Followed { ekiden } => commands::followed(modules, &ekiden),
        GuestTest::ReaderKilled { ekiden, to } => commands::reader_killed(modules, &ekiden, &to),
        GuestTest::FoundFlight { ekiden, to } => commands::found_flight(modules, &ekiden, &to),
        GuestTest::Told => commands::told(modules),
        GuestTest::RecordedGroups { to } => groups::recorded_groups(modules, &to),
        GuestTest::Due { policy, others, nices, seconds, starved_after_ms } => {
            due::due(modules, &policy, others, [nices[0], nices[1]], [seconds[0], seconds[1]], starved_after_ms)
        }
        GuestTest::ManyTasksAndGroups { tasks, groups } => groups::many_tasks_and_groups(modules, tasks, groups),
        GuestTest::Exact { policy, tasks, seconds } => quotas::exact(modules, policy.as_deref(), &tasks, seconds),
        GuestTest::Throttled { tasks, seconds } => quotas::throttled(modules, tasks, seconds),
        GuestTest::Holder => groups::holder(modules),
        GuestTest::GroupCosts { policy } => groups::group_costs(modules, policy.as_deref()),
        GuestTest::Trips { policy } => trips::trips(modules, policy.as_deref()),
        GuestTest::Record => guest_tests::record(),
        GuestTest::Wasted { policy, behind_real_time, seconds } => {
            watches::wasted(modules, policy.as_deref(), behind_real_time, seconds)
        }
        GuestTest::Limited { policy, quota_us, seconds } => {
            watches::limited(modules, policy.as_deref(), quota_us, seconds)
        }
        GuestTest::Found { policy, attached, ekiden, report } => {
            watches::found(modules, &policy, attached, &ekiden, &report)
        }
        GuestTest::Beside { policy, command } => watches::beside(modules, policy.as_deref(), &command),
        GuestTest::Busy { policy, seconds } => watches::busy(modules, policy.as_deref(), seconds),
        GuestTest::Tried { command } => watches::tried(&command),
        GuestTest::Chooser => intruder::chooser(modules),
        GuestTest::Intruder => intruder::intruder(modules),
        GuestTest::Beyond { policy } => beyond::beyond(modules, &policy),
        GuestTest::Herd { policy, tasks, beyond, seconds } => {
            beyond::herd(modules, policy.as_deref(), tasks, beyond, seconds)
        }
        GuestTest::Impostor => impostor::impostor(modules),
        GuestTest::KfuncCaller => kfunc_caller::kfunc_caller(modules),
        GuestTest::Texts => texts::texts(modules),
        GuestTest::Waits => watches::waits(),
        GuestTest::Still { seconds } => still::still(modules, seconds),
        GuestTest::Child { what } => load::child(&what),
    }
}
