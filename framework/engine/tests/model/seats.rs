//! What the table of tasks needs of seats.

pub(crate) enum NotChosen {
    NoTask,
    ByRoot,
}
