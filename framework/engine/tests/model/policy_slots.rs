//! What the table of tasks needs of policy slots.

pub(crate) enum NotChosen {
    NoTask,
    ByRoot,
}
