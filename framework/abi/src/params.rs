//! Parameters of one task, on their way from the caller that sets them to the policy.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How many parameters a policy can have for each task.
pub const TASK_PARAMS_MAX: usize = 4;

/// The parameters of a task: the payload of [`EventKind::TaskParams`](crate::EventKind::TaskParams) and
/// [`Call::TaskParams`](crate::Call::TaskParams).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RawParams {
    /// The fingerprint of what the policy declares, for which these were checked; 0 for none.
    pub declared: u64,
    /// A value for each, in the order in which they are declared.
    pub values: [u64; TASK_PARAMS_MAX],
}
