//! A program outside the workspace that uses Farleaf as its readers would.

use std::fs;
use std::path::Path;
use std::process::Command;

const MANIFEST: &str = r#"
[package]
name = "outside"
version = "0.1.0"
edition = "2024"

[dependencies]
farleaf = { path = "FARLEAF" }
tokio = { version = "1", default-features = false, features = ["macros", "rt"] }

[workspace]
"#;

const PROGRAM: &str = r#"
use farleaf::{Embedded, EmbeddedOptions, Error, Handle};

struct Service {
    index: Handle,
}

impl Service {
    async fn add(&self, key: u64) -> Result<bool, Error> {
        self.index.insert(key, key * 2).await
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let service = Service { index: Embedded::open(EmbeddedOptions::default())? };
    for key in 0..100 {
        assert!(service.add(key).await?);
    }
    assert_eq!(service.index.get(42).await?, Some(84));
    assert_eq!(service.index.scan(90..).into_iter().count(), 10);
    println!("done");
    Ok(())
}
"#;

#[test]
#[ignore = "builds the library again: minutes"]
fn a_program_of_its_own_builds_and_runs() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    fs::create_dir_all(folder.join("src")).unwrap();
    let manifest = MANIFEST.replace("FARLEAF", here.to_str().unwrap());
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.join("src/main.rs"), PROGRAM).unwrap();
    // The same versions, which are downloaded already.
    fs::copy(here.join("../../Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline"])
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n");
}
