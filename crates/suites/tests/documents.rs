//! Every link in the documents leads to a file that is there, and to a heading that it has.
//!
//! *Thread safety*: reads files.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown files of a folder, and of those in it if `deep`.
fn documents(folder: &Path, deep: bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && deep {
            documents(&path, deep, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The text without code blocks, whose brackets are no links and whose `#` no headings.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The targets of `[text](target)`, without those on the web.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.to_owned());
    targets.filter(|target| !target.contains("://") && !target.contains(' ')).collect()
}

/// A heading as the fragment of a link names it.
fn fragment(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

fn has_heading(text: &str, wanted: &str) -> bool {
    let prose = prose(text);
    let mut headings = prose.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| fragment(line.trim_start_matches('#')) == wanted)
}

/// What is wrong with a link of a document.
fn fault(document: &Path, link: &str) -> Option<&'static str> {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => document.to_owned(),
        file => document.parent().unwrap().join(file),
    };
    if !target.exists() {
        return Some("there is no such file");
    }
    let is_there = heading.is_empty() || has_heading(&fs::read_to_string(target).unwrap(), heading);
    (!is_there).then_some("the file has no such heading")
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut found = Vec::new();
    documents(&root(), false, &mut found);
    for folder in ["docs", "findings"] {
        documents(&root().join(folder), true, &mut found);
    }
    let mut checked = 0;
    for document in &found {
        for link in links(&fs::read_to_string(document).unwrap()) {
            assert_eq!(fault(document, &link), None, "{}: {link}", document.display());
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} links were found");
    let readme = root().join("README.md");
    assert_eq!(fault(&readme, "docs/none.md"), Some("there is no such file"));
    assert_eq!(fault(&readme, "#no-such-part"), Some("the file has no such heading"));
    assert_eq!(links("see [a](b.md#c), [d](https://e)\n```\n[f](g)\n```\n"), ["b.md#c"]);
}
