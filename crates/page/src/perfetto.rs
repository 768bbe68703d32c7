//! Perfetto.
