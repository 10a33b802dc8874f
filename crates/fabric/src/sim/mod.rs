//! `sim`: a whole cluster on one thread, in virtual time.
