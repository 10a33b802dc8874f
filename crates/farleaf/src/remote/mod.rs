//! Protocols over the fabric: soon.
