//! Runs inside the guest of the kernel tests: puts policies into the kernel, has them go wrong, and says what came of
//! it, one line of JSON per trial.

mod agent;
mod agent_groups;
mod arguments;
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
mod impostor;
mod intruder;
mod list;
mod load;
mod neighbour;
mod planted;
mod processes;
mod pulse;
mod queues;
mod quotas;
mod races;
mod recordings;
mod requests;
mod seen;
mod several;
mod storm;
mod stranger;
mod terms;
mod texts;
mod trials;
mod trips;
mod upgrades;
mod victim;
mod watches;

use std::thread;

use clap::Parser as _;

use crate::arguments::{Arguments, Trial};

fn main() -> anyhow::Result<()> {
    let Arguments { modules, trial } = Arguments::parse();
    let modules = &modules;
    let is_anywhere = matches!(
        trial,
        Trial::Child { .. }
            | Trial::Hold { .. }
            | Trial::AgentHolds { .. }
            | Trial::List { .. }
            | Trial::Generated { .. }
            | Trial::AllAtOnce { .. }
            | Trial::Affinities { .. }
            | Trial::LastTimers { .. }
            | Trial::Beside { .. }
            | Trial::Trips { .. }
            | Trial::Victim { .. }
            | Trial::VictimWorks { .. }
            | Trial::NeighbourLives { .. }
            | Trial::Exact { .. }
            | Trial::Throttled { .. }
            | Trial::Device { .. }
            | Trial::DeviceAsks { .. }
    );
    if !is_anywhere && thread::available_parallelism()?.get() > 1 {
        load::stay_on_cpu_1()?;
    }
    match trial {
        Trial::AgentWorks { messages, rounds, policy, recordings } => {
            agent::works(messages, rounds, policy.as_deref(), &recordings)
        }
        Trial::AgentEnds { flight } => agent::ends(&flight),
        Trial::AgentGroups { policy, messages, idle } => agent_groups::agent_groups(&policy, messages, idle),
        Trial::AgentAsks => agent_groups::agent_asks(),
        Trial::AgentRefuses => agent::refuses(),
        Trial::AgentHolds { policy, params, flight } => agent::holds(&policy, &params, &flight),
        Trial::List { rounds, only, beside, part } => list::list(modules, rounds, &only, beside, part),
        Trial::Generated { first, from, count } => generated::generated(modules, first, from, count),
        Trial::Faults(panics) => trials::faults(modules, &panics),
        Trial::Comings { rounds } => comings::comings(modules, rounds),
        Trial::Affinities { policy, seconds } => races::affinities(modules, &policy, seconds),
        Trial::LastTimers { rounds } => races::last_timers(modules, rounds),
        Trial::Reload { rounds } => trials::reload(modules, rounds),
        Trial::Storm { policy, neighbour } => trials::storm(modules, &policy, neighbour),
        Trial::Victim { policies, rounds, seconds, seed } => victim::beside(modules, &policies, rounds, seconds, seed),
        Trial::Device { seconds, seed } => device::device(modules, seconds, seed),
        Trial::DeviceAsks { seed, number, user } => requests::asks(seed, number, user),
        Trial::VictimWorks { group } => victim::works(&group),
        Trial::NeighbourLives { seed, group } => neighbour::lives(seed, &group),
        Trial::AllAtOnce { seconds, seed, wait_ms_max } => storm::storm_of_all(modules, seconds, seed, wait_ms_max),
        Trial::Refusals => trials::refusals(modules),
        Trial::Upgrades { rounds, patience_us } => upgrades::upgrades(modules, rounds, patience_us),
        Trial::RefusedUpgrades => upgrades::refused_upgrades(modules),
        Trial::Versions => upgrades::versions(modules),
        Trial::Converts => upgrades::converts(modules),
        Trial::Falls => upgrades::falls(modules),
        Trial::Several => several::several(modules),
        Trial::Claimed => several::claimed(modules),
        Trial::Shares => several::shares(modules),
        Trial::Terms => terms::terms(modules),
        Trial::Figures => figures::figures(modules),
        Trial::FiguresInAgent => figures::figures_in_agent(),
        Trial::Queues => queues::queues(modules),
        Trial::Seen => seen::seen(modules),
        Trial::Alone(panics) => several::alone(modules, &panics),
        Trial::Attached => trials::attached(modules),
        Trial::Hold { policy, beside, command } => trials::hold(modules, &policy, beside, &command),
        Trial::Leaving => trials::leaving(modules),
        Trial::Away { policy } => trials::away(modules, &policy),
        Trial::Recorded { policy, to, seconds } => recordings::recorded(modules, &policy, &to, seconds),
        Trial::Flown { to } => recordings::flown(modules, &to),
        Trial::Switched { to } => recordings::switched(modules, &to),
        Trial::Woken { to } => recordings::woken(modules, &to),
        Trial::Groups { policy } => groups::groups(modules, policy.as_deref()),
        Trial::Grouped { policy } => groups::grouped(modules, &policy),
        Trial::Followed { ekiden } => commands::followed(modules, &ekiden),
        Trial::ReaderKilled { ekiden, to } => commands::reader_killed(modules, &ekiden, &to),
        Trial::FoundFlight { ekiden, to } => commands::found_flight(modules, &ekiden, &to),
        Trial::RecordedGroups { to } => groups::recorded_groups(modules, &to),
        Trial::Due { policy, others, nices, seconds } => {
            due::due(modules, &policy, others, [nices[0], nices[1]], [seconds[0], seconds[1]])
        }
        Trial::Crowd { tasks, groups } => groups::crowd(modules, tasks, groups),
        Trial::Exact { policy, tasks, seconds } => quotas::exact(modules, policy.as_deref(), &tasks, seconds),
        Trial::Throttled { tasks, seconds } => quotas::throttled(modules, tasks, seconds),
        Trial::Holder => groups::holder(modules),
        Trial::GroupCosts { policy } => groups::group_costs(modules, policy.as_deref()),
        Trial::Trips { policy } => trips::trips(modules, policy.as_deref()),
        Trial::Record => trials::record(),
        Trial::Wasted { policy, behind_real_time, seconds } => {
            watches::wasted(modules, policy.as_deref(), behind_real_time, seconds)
        }
        Trial::Limited { policy, quota_us, seconds } => watches::limited(modules, policy.as_deref(), quota_us, seconds),
        Trial::Found { policy, attached, ekiden, report } => {
            watches::found(modules, &policy, attached, &ekiden, &report)
        }
        Trial::Beside { policy, command } => watches::beside(modules, policy.as_deref(), &command),
        Trial::Busy { policy, seconds } => watches::busy(modules, policy.as_deref(), seconds),
        Trial::Tried { command } => watches::tried(&command),
        Trial::Chooser => intruder::chooser(modules),
        Trial::Intruder => intruder::intruder(modules),
        Trial::Beyond { policy } => beyond::beyond(modules, &policy),
        Trial::Herd { policy, tasks, beyond, seconds } => {
            beyond::herd(modules, policy.as_deref(), tasks, beyond, seconds)
        }
        Trial::Impostor => impostor::impostor(modules),
        Trial::Stranger => stranger::stranger(modules),
        Trial::Texts => texts::texts(modules),
        Trial::Waits => watches::waits(),
        Trial::Still { seconds } => list::still(modules, seconds),
        Trial::Child { what } => load::child(&what),
    }
}
