//! `policies!`, the one place where a crate says which policies it has.

/// Says which policies a crate has: once, at the root of its `src/lib.rs`. `ekiden build` makes a kernel module of each, called after its
/// type: `ShortestJob` is policy `shortest-job`, module `ekiden_shortest_job`.
///
/// `module::Type` is a policy in a file of its own, whose module is declared and whose type is made public here; so the line is all that a
/// new file needs. `Type` alone stands in `src/lib.rs` itself. A crate has one kind or the other.
///
/// Crates that depend on it can have code for each of its policies by `for_each_policy!`, which this makes. It hands the names of modules
/// and types, in this order, to a macro of the caller's (for types in `src/lib.rs`, the type stands for the module, too):
///
/// ```
/// use ekiden::prelude::*;
///
/// ekiden::policies![ShortestJob, LongestJob];
///
/// macro_rules! names {
///     ($($module:ident $policy:ident)*) => { [$(<$policy as Scheduler>::NAME),*] };
/// }
///
/// # fn main() {
/// assert_eq!(for_each_policy!(names), ["shortest-job", "longest-job"]);
/// # }
/// # macro_rules! policy {
/// #     ($policy:ident) => {
/// #         struct $policy;
/// #         #[policy]
/// #         impl Scheduler for $policy {
/// #             fn new(_: &Env) -> Self { $policy }
/// #             fn enqueue(&self, _: &Cx, _: &Task, _: Schedulable<Self>) {}
/// #             fn pick_next_task(&self, _: &Cx, _: CpuId) -> Option<Schedulable<Self>> { None }
/// #         }
/// #     };
/// # }
/// # policy!(ShortestJob);
/// # policy!(LongestJob);
/// ```
#[macro_export]
macro_rules! policies {
    ($($module:ident :: $policy:ident),+ $(,)?) => {
        $(
            pub mod $module;
            #[doc(inline)]
            pub use $module::$policy;
        )+
        $crate::policies!(@list ($) $($module $policy)+);
    };
    ($($policy:ident),+ $(,)?) => { $crate::policies!(@list ($) $($policy $policy)+); };
    (@list ($d:tt) $($module:ident $policy:ident)+) => {
        /// Hands module and type of each policy of this crate to the macro of this name.
        #[macro_export]
        macro_rules! for_each_policy {
            ($d with:ident) => { $d with! { $($module $policy)+ } };
        }
    };
}
