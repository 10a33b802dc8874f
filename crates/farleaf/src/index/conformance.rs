//! The suite that every index design passes on every provider.
