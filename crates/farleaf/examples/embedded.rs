//! An index within this process, from a plain thread:
//! `cargo run -p farleaf --example embedded`

use farleaf::{Embedded, EmbeddedOptions, Error, Exchange};

fn main() -> Result<(), Error> {
    let index = Embedded::open(EmbeddedOptions::default().memory_servers(4))?;
    for key in 0..1_000 {
        index.insert(key, key * key).wait()?;
    }
    println!("the value of 42 is {:?}", index.get(42).wait()?);

    // A counter that several threads increment.
    index.upsert(0, 0).wait()?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let index = index.clone();
            scope.spawn(move || (0..100).try_for_each(|_| increment(&index, 0)));
        }
    });
    println!("400 increments make {:?}", index.get(0).wait()?);

    for record in index.scan(..).reverse().limit(3) {
        let (key, value) = record?;
        println!("{key}: {value}");
    }
    Ok(())
}

fn increment(index: &farleaf::Handle, key: u64) -> Result<(), Error> {
    let mut expected = index.get(key).wait()?.unwrap_or(0);
    loop {
        match index.compare_exchange(key, expected, expected + 1).wait()? {
            Exchange::Exchanged => return Ok(()),
            Exchange::Differs(found) => expected = found.unwrap_or(0),
        }
    }
}
