//! The generated skeletons.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]

pub(crate) mod ekiden {
    include!(concat!(env!("OUT_DIR"), "/ekiden.skel.rs"));
}

pub(crate) mod baseline {
    include!(concat!(env!("OUT_DIR"), "/baseline.skel.rs"));
}

pub(crate) mod record {
    include!(concat!(env!("OUT_DIR"), "/record.skel.rs"));
}

pub(crate) mod look {
    include!(concat!(env!("OUT_DIR"), "/look.skel.rs"));
}

pub(crate) mod runqlat {
    include!(concat!(env!("OUT_DIR"), "/runqlat.skel.rs"));
}
