//! What tests need for an endpoint over another one that delays or fails some operations.

/// The functions of [`Fabric`](crate::Fabric) that post nothing, in an implementation that passes
/// them on to the endpoint in this field.
#[macro_export]
macro_rules! forward_fabric {
    ($inner:ident) => {
        fn buffer(&self, bytes: usize) -> Result<$crate::Buffer, $crate::FabricError> {
            self.$inner.buffer(bytes)
        }

        async fn charge(&self, work: $crate::Work) {
            self.$inner.charge(work).await;
        }

        async fn sleep(&self, ns: u64) {
            self.$inner.sleep(ns).await;
        }

        fn now_ns(&self) -> u64 {
            self.$inner.now_ns()
        }

        fn random(&self) -> u64 {
            self.$inner.random()
        }

        fn unique(&self) -> u64 {
            self.$inner.unique()
        }

        fn counters(&self) -> &$crate::Counters {
            self.$inner.counters()
        }

        fn memory_servers(&self) -> u16 {
            self.$inner.memory_servers()
        }

        fn compute_server(&self) -> u16 {
            self.$inner.compute_server()
        }

        fn depth(&self) -> usize {
            self.$inner.depth()
        }

        fn tears(&self) -> bool {
            self.$inner.tears()
        }
    };
}
