//! The memory server: its region, its allocator, and the requests that it answers.
