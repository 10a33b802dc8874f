//! An index in this process, from plain threads:
//! `cargo run --release -p farleaf --example embedded`

use farleaf::{Embedded, EmbeddedOptions, Error, Exchange};

fn main() -> Result<(), Error> {
    let options = EmbeddedOptions::default().memory_bytes(256 << 20).cache_bytes(16 << 20);
    let index = Embedded::open(options)?;
    let loaded = index.bulk_load((0..1_000_000_u64).map(|number| (number * 10, number))).wait()?;
    println!("{loaded} records loaded");

    // Threads share the handle.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let index = &index;
            scope.spawn(move || -> Result<(), Error> {
                for number in 0..1_000 {
                    index.insert(number * 10 + 1 + thread, thread).wait()?;
                }
                Ok(())
            });
        }
    });

    println!("the records from 42 on:");
    for record in index.scan(42..).limit(5) {
        let (key, value) = record?;
        println!("  {key} = {value}");
    }
    let highest = index.scan(..).reverse().next().transpose()?;
    println!("the highest record: {highest:?}");
    match index.compare_exchange(10, 1, 2).wait()? {
        Exchange::Exchanged => println!("10 was 1, and is 2 now"),
        Exchange::Differs(held) => println!("10 is {held:?}"),
    }
    Ok(())
}
