//! `#[policy]`, the attribute that completes an implementation of the `Scheduler` trait and of those beside it, `#[derive(Layout)]` and
//! `#[derive(Plain)]`.
//!
//! Policies use them from `ekiden`. What they generate is tested from there, where the traits are, and the example of `#[policy]` is there, too.
//! A crate that these tests depended on would be compiled twice, as would all that is under it.
#![forbid(unsafe_code)]

mod complete;
mod layout;
mod name;
mod plain;

use proc_macro::TokenStream;

/// What the implementation leaves out is filled in, what it says stands:
///
/// * `const CALLS`: the calls that it implements itself, so that the others are never delivered.
///   - Always among them are `pick_next_task` and what `enqueue` stands for: `task_new`, `task_wakeup`,
///     `task_preempt`, `task_yield`, `migrate_task_rq` and `pnt_err`.
///   - `parse_hint` brings `enter_queue` along, whose default hands each hint to it.
/// * `const NAME`: the name of the type in lower case, with dashes: `ShortestJob` is `shortest-job`.
/// * `HintQueues`, `TaskSettings` and `SavedState`, by nothing, unless the attribute names them, as in `#[policy(HintQueues)]`: then
///   implementations of their own follow, with `#[policy]` on them for what those leave out.
/// * `type State = Self`, with the two methods that hand the whole policy over in a live upgrade.
/// * `const LAYOUT`: the fingerprint of the state, if it derives `Layout`.
#[proc_macro_attribute]
pub fn policy(arguments: TokenStream, item: TokenStream) -> TokenStream {
    complete::complete(arguments.into(), item.into()).into()
}

/// Gives a type a fingerprint by which another build knows whether it has the same layout: see `ekiden::Layout`.
#[proc_macro_derive(Layout)]
pub fn layout(item: TokenStream) -> TokenStream {
    layout::derive(item.into()).into()
}

/// Says how a type looks that is shared with programs: see `ekiden::Plain`.
#[proc_macro_derive(Plain)]
pub fn plain(item: TokenStream) -> TokenStream {
    plain::derive(item.into()).into()
}
