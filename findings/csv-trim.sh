#!/usr/bin/env bash
# The csv crate's `Trim::All` trims fields after they have been parsed, and so both too late and too much. A quote that is
# never closed is no error either.
#
# Most would guess: trimming makes `a, "b"` the same as `a,"b"`, and leaves what is within quotes alone, as quotes are there to
# protect it.
# What happens: (1) a blank before a quote makes the quote a character of the field. The field is then trimmed, and keeps both
# quotes: `"vb"`, four characters. A separator within such quotes still separates. (2) White space within quotes is
# removed, so that `" x "` and `x` are the same, and `" "` is empty. (3) A file that ends within quotes ends as if it were
# complete, and all rows behind the open quote are one field. None of these is an error, and no option makes one of it.
#
# Version: csv 1.4.0 (crates.io), `ReaderBuilder::trim`. Source: csv's src/reader.rs and src/string_record.rs (`trim` runs on the
# record that was read). Date: 2026-11-28.
#
#   findings/csv-trim.sh              needs cargo, which fetches the crate
#
# Exit codes: 0 it still behaves so, 1 it behaves otherwise, 2 it could not be run.
set -euo pipefail
command -v cargo >/dev/null || { echo "error: there is no cargo" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset CARGO_TARGET_DIR RUSTFLAGS
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2021"

[dependencies]
csv = "=1.4.0"
TOML
cat >src/main.rs <<'RUST'
fn main() {
    let mut options = csv::ReaderBuilder::new();
    let mut is_as_described = true;
    for (text, expected) in [
        ("\"b2\",\"vb\"\n", vec!["b2", "vb"]),
        ("\"b2\", \"vb\"\n", vec!["b2", "\"vb\""]),
        (" \"c3\",vc\n", vec!["\"c3\"", "vc"]),
        ("d4, \"v,d\"\n", vec!["d4", "\"v", "d\""]),
        ("\" k \",\" \"\n", vec!["k", ""]),
    ] {
        let mut reader = options.trim(csv::Trim::All).has_headers(false).from_reader(text.as_bytes());
        let record = reader.records().next().expect("a row").expect("no error");
        let found: Vec<_> = record.iter().collect();
        println!("{:<16} -> {found:?}", text.trim_end_matches('\n'));
        is_as_described &= found == expected;
    }
    let open = "a,1\nb,\"2\nc,3\nd,4\n";
    let mut reader = options.has_headers(false).from_reader(open.as_bytes());
    let rows: Vec<Vec<String>> = reader
        .records()
        .map(|row| row.expect("no error").iter().map(str::to_owned).collect())
        .collect();
    println!("{open:?} -> {rows:?}");
    is_as_described &= rows == [["a", "1"], ["b", "2\nc,3\nd,4"]];
    if !is_as_described {
        println!("the behaviour has changed");
        std::process::exit(1);
    }
    println!("as described");
}
RUST
cargo build --quiet >build.log 2>&1 || { tail -n 5 build.log >&2; exit 2; }
cargo tree --quiet --depth 1 | sed -n 2p
target/debug/finding
