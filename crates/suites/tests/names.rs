//! Names: a type is found by its name alone, and limits begin with `MAX_` or `MIN_`. The tests read
//! the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Names of several types, each with the reason.
const SHARED: [(&str, &str); 0] = [];

/// Words that stand for `MAX_` or `MIN_`.
const FORMER_LIMITS: [&str; 4] = ["MOST_", "LEAST_", "LONGEST_", "SHORTEST_"];

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("cannot read the folder") {
        let path = entry.expect("cannot read the folder's entries").path();
        if path.is_dir() {
            if !path.ends_with("target") {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// All sources of the crates, each with its path below `crates/`.
fn sources() -> Vec<(String, String)> {
    let (base, mut paths) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), Vec::new());
    rust_files(&base, &mut paths);
    let relative = |path: &Path| path.strip_prefix(&base).unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (relative(path), fs::read_to_string(path).unwrap())).collect()
}

/// A line without its visibility and `unsafe`.
fn item(line: &str) -> &str {
    let mut rest = line.trim_start();
    if let Some(behind) = rest.strip_prefix("pub") {
        rest = match behind.strip_prefix('(') {
            Some(within) => within.split_once(')').map_or("", |(_, behind)| behind),
            None => behind,
        }
        .trim_start();
    }
    rest.strip_prefix("unsafe ").unwrap_or(rest)
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The types that a file defines. Associated types are not among them.
fn types(text: &str) -> Vec<String> {
    let (mut found, mut block) = (Vec::new(), None);
    for line in text.lines() {
        let (rest, indent) = (item(line), line.len() - line.trim_start().len());
        if block.is_some_and(|begun| indent == begun && line.trim_start().starts_with('}')) {
            block = None;
            continue;
        }
        let keyword = word(rest);
        let is_block = matches!(keyword.as_str(), "impl" | "trait");
        if is_block && block.is_none() && !line.ends_with(['}', ';']) {
            block = Some(indent);
        }
        let is_type = match keyword.as_str() {
            "struct" | "enum" | "trait" | "union" => true,
            "type" => block.is_none(),
            _ => false,
        };
        let name = rest.strip_prefix(&keyword).and_then(|rest| rest.strip_prefix(' ')).map(word);
        found.extend(name.filter(|name| is_type && !name.is_empty()));
    }
    found
}

#[test]
fn no_two_types_share_a_name() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for (file, text) in sources().iter().filter(|(file, _)| file.contains("/src/")) {
        for name in types(text) {
            places.entry(name).or_default().push(file.clone());
        }
    }
    assert!(places.len() > 1_000, "{} types", places.len());
    let is_listed = |name: &str| SHARED.iter().any(|(shared, _)| *shared == name);
    places.retain(|name, files| files.len() > 1 && !is_listed(name));
    assert!(places.is_empty(), "give each a name of its own: {places:#?}");
}

#[test]
fn types_are_found_where_they_are_defined() {
    let text = "pub(crate) struct One;\nimpl Two for One {\n    type Three = u8;\n}\ntype Four = u8;\n\
        pub trait Five {\n    type Six;\n}\nimpl Seven for One {}\npub unsafe trait Eight {}\n\
        mod tests {\n    enum Nine {}\n}\n// struct Ten;\n";
    assert_eq!(types(text), ["One", "Four", "Five", "Eight", "Nine"]);
}

#[test]
fn limits_begin_with_max_or_min() {
    for (file, text) in sources() {
        for line in text.lines() {
            let rest = item(line);
            let name = ["const ", "static "].iter().find_map(|keyword| rest.strip_prefix(keyword));
            let is_former = |name: &str| FORMER_LIMITS.iter().any(|word| name.starts_with(word));
            assert!(!name.is_some_and(is_former), "{file}: say MAX_ or MIN_: {line}");
        }
    }
}
