//! A client of a running cluster:
//!
//! ```console
//! $ farleaf cluster --dir /tmp/farleaf --memory-servers 2 --compute-servers 2
//! $ cargo run --release -p farleaf --example cluster_client -- /tmp/farleaf
//! ```

use farleaf::{ConnectOptions, Error, Index};
use std::time::Duration;

/// Programs keep the handle, which automatically finds servers that were restarted elsewhere.
struct Accounts {
    index: Index,
}

impl Accounts {
    /// Adds to a balance. An unknown outcome is settled by reading, not by repeating the change.
    async fn add(&self, account: u64, amount: u64) -> Result<u64, Error> {
        loop {
            let held = self.index.get(account).await?;
            let sum = held.unwrap_or(0) + amount;
            let done = match held {
                None => self.index.insert(account, sum).await,
                Some(held) => self
                    .index
                    .compare_exchange(account, held, sum)
                    .await
                    .map(|outcome| outcome == farleaf::Exchange::Exchanged),
            };
            match done {
                Ok(true) => return Ok(sum),
                Ok(false) => {}
                Err(error) if error.is_indeterminate() => {
                    eprintln!("account {account} may or may not have changed: {error}");
                    return Err(error);
                }
                Err(error) => {
                    eprintln!("account {account} is unchanged: {error}");
                    return Err(error);
                }
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let Some(folder) = std::env::args().nth(1) else {
        println!("give the folder of a running cluster: cluster_client /tmp/farleaf");
        return Ok(());
    };
    let index = farleaf::connect(ConnectOptions::new(folder).deadline(Duration::from_secs(3)))?;
    let accounts = Accounts { index };
    for account in 0..10 {
        println!("account {account} has {}", accounts.add(account, 100).await?);
    }
    let mut records = accounts.index.scan(..).reverse().limit(3).stream();
    while let Some(record) = records.next().await {
        let (account, balance) = record?;
        println!("{account} = {balance}");
    }
    Ok(())
}
