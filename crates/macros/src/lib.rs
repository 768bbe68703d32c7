//! `#[policy]`, the attribute that completes an implementation of the `Scheduler` trait.
//!
//! Policies use it as `ekiden::policy`. What it generates is tested from there, where the trait is.
#![forbid(unsafe_code)]

mod complete;
mod name;

use proc_macro::TokenStream;

/// Completes `impl Scheduler for MyPolicy`.
///
/// What the implementation leaves out is filled in, what it says stands:
///
/// * `const CALLS`: the calls that it implements itself, so that the others are never delivered.
///   - Always among them are `pick_next_task` and what `enqueue` stands for: `task_new`, `task_wakeup`,
///     `task_preempt`, `task_yield`, `migrate_task_rq` and `pnt_err`.
///   - `parse_hint` brings `enter_queue` along, whose default hands each hint to it.
/// * `const NAME`: the name of the type in lower case, with dashes: `ShortestJob` is `shortest-job`.
/// * `type Hint = ()`: it takes no hints.
/// * `type State = Self`, with the two methods that hand the whole policy over in a live upgrade.
#[proc_macro_attribute]
pub fn policy(arguments: TokenStream, item: TokenStream) -> TokenStream {
    complete::complete(arguments.into(), item.into()).into()
}
