//! Design 1 of *Designing Distributed Tree-based Index Structures for Fast RDMA-capable Networks*.
