//! The suite that every provider of the fabric passes.
