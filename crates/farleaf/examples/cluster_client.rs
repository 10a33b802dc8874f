//! A service that keeps a handle on a running cluster, in tasks of tokio. Start a cluster with
//! `farleaf cluster --dir my-cluster`, then:
//! `cargo run -p farleaf --example cluster_client -- my-cluster`

use farleaf::{Error, Handle};
use std::time::Duration;

/// What a program would share among its tasks.
#[derive(Clone)]
struct Orders {
    index: Handle,
}

impl Orders {
    /// Adds an order. No other task inserts this number, so after an unknown outcome it is inserted
    /// again: if it is there already, the first attempt has happened.
    async fn place(&self, number: u64, amount: u64) -> Result<bool, Error> {
        match self.index.insert(number, amount).await {
            Err(error) if !error.nothing_happened() => {
                self.index.insert(number, amount).await?;
                Ok(true)
            }
            outcome => outcome,
        }
    }

    async fn latest(&self, count: usize) -> Result<Vec<(u64, u64)>, Error> {
        let mut scan = self.index.scan(..).reverse().limit(count);
        let mut latest = Vec::new();
        while let Some(order) = scan.next().await {
            latest.push(order?);
        }
        Ok(latest)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: cluster_client FOLDER")?;
    let orders = Orders { index: farleaf::connect(folder)? };
    let placed = (1..=100).map(|number| {
        let orders = orders.clone();
        tokio::spawn(async move { orders.place(number, number * 10).await })
    });
    for placed in placed.collect::<Vec<_>>() {
        placed.await??;
    }
    for (number, amount) in orders.latest(3).await? {
        println!("order {number}: {amount}");
    }
    // Timeouts of tokio work too. A lookup has no effect, so dropping it is harmless.
    let found = tokio::time::timeout(Duration::from_secs(1), orders.index.get(42)).await??;
    println!("order 42: {found:?}");
    Ok(())
}
