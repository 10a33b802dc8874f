//! Every link in the documents leads to a file that is there, and to a heading that it has. Lines,
//! table cells and sentences are short enough to be read, and to be compared by a line-based diff.
//!
//! *Thread safety*: reads files.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The most characters of a line outside tables and code.
const MAX_LINE: usize = 120;

/// The most characters of a table cell, whose row cannot be divided into lines.
const MAX_CELL: usize = 200;

/// The most words of a sentence; a code span counts as one.
const MAX_WORDS: usize = 40;

/// Their sentences may be longer: decisions record what was considered at a time, and are not
/// revised afterwards.
const LONG_SENTENCES: [&str; 1] = ["docs/decisions/"];

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

/// All documents of the project.
fn all_documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    documents(&root(), false, &mut found);
    for folder in ["docs", "findings"] {
        documents(&root().join(folder), true, &mut found);
    }
    found
}

/// The lines outside code blocks, with their numbers from 1 on.
fn numbered(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut kept = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            kept.push((at + 1, ""));
        } else if !is_code {
            kept.push((at + 1, line));
        }
    }
    kept
}

fn is_row(line: &str) -> bool {
    line.trim_start().starts_with('|')
}

/// The cells of a table's row. A `|` within a cell is written `\|`.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim().replace("\\|", "/");
    row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The rest of a list item behind its mark.
fn item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (mark, rest) = line.split_once(' ')?;
    let number = mark.strip_suffix('.').unwrap_or("");
    let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
    (["-", "*", "+"].contains(&mark) || is_number).then_some(rest)
}

/// Whether nothing but a link, or a word, is in a line, which then cannot be divided.
fn cannot_be_divided(line: &str) -> bool {
    let line = item(line).unwrap_or(line).trim();
    let is_link = line.starts_with('[') && line.matches("](").count() == 1 && line.ends_with(')');
    is_link || !line.contains(' ')
}

/// Lines and cells that are too long, as the number of the line and what is wrong.
fn long_lines(text: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    for (at, line) in numbered(text) {
        let length = line.chars().count();
        if is_row(line) {
            let lengths = cells(line).into_iter().map(|cell| cell.chars().count());
            let long = lengths.filter(|length| *length > MAX_CELL);
            faults.extend(long.map(|length| (at, format!("a cell of {length} characters"))));
        } else if length > MAX_LINE && !cannot_be_divided(line) {
            faults.push((at, format!("{length} characters")));
        }
    }
    faults
}

/// Paragraphs, list items and cells, with the numbers of their first lines.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (at, line) in numbered(text) {
        let line = line.trim();
        if is_row(line) {
            found.extend(cells(line).into_iter().map(|cell| (at, cell)));
            is_open = false;
        } else if line.is_empty() || line.starts_with(['#', '<']) {
            is_open = false;
        } else if let Some(rest) = item(line) {
            found.push((at, rest.to_owned()));
            is_open = true;
        } else if is_open && let Some((_, block)) = found.last_mut() {
            *block = format!("{block} {line}");
        } else {
            found.push((at, line.to_owned()));
            is_open = true;
        }
    }
    found
}

/// A block with a word instead of each code span, and without the targets of links.
fn as_words(block: &str) -> String {
    let parts = block.split('`').enumerate();
    let text: String = parts.map(|(at, part)| if at % 2 == 0 { part } else { "code" }).collect();
    let mut parts = text.split("](");
    let mut words = parts.next().unwrap_or("").to_owned();
    for part in parts {
        words.push(']');
        words.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    words
}

/// Sentences that are too long, as the number of their block's line and what is wrong.
fn long_sentences(text: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    for (at, block) in blocks(text) {
        let (mut words, mut start) = (0, String::new());
        for word in as_words(&block).split_whitespace().chain(["."]) {
            if words == 0 {
                word.clone_into(&mut start);
            }
            words += usize::from(word.contains(char::is_alphanumeric));
            let bare = word.trim_end_matches([')', '"', '*', ']', '_']);
            let is_short_form = ["al.", "e.g.", "i.e.", "etc."].contains(&bare);
            if bare.ends_with(['.', '!', '?']) && !is_short_form {
                if words > MAX_WORDS {
                    faults.push((at, format!("a sentence of {words} words, from “{start}” on")));
                }
                words = 0;
            }
        }
    }
    faults
}

#[test]
fn lines_and_sentences_are_short() {
    let mut faults = String::new();
    for document in all_documents() {
        let text = fs::read_to_string(&document).unwrap();
        let path = document.strip_prefix(root()).unwrap().display().to_string();
        let mut found = long_lines(&text);
        if !LONG_SENTENCES.iter().any(|folder| path.starts_with(folder)) {
            found.extend(long_sentences(&text));
        }
        for (line, fault) in found {
            faults.push_str(&format!("{path}:{line}: {fault}\n"));
        }
    }
    assert!(faults.is_empty(), "wrap lines, divide cells and sentences:\n{faults}");
}

/// The checks find what is too long by one, and count as they should.
#[test]
fn what_is_too_long_is_found() {
    let lines = |text: &str| long_lines(text).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    let (fits, long) = ("ab ".repeat(40), format!("{}c", "ab ".repeat(40)));
    assert_eq!(lines(&format!("{fits}\n{long}\n```\n{long}\n```\n| {long} |\n")), [2]);
    assert_eq!(lines(&format!("- [a b](https://{})\n", "c".repeat(120))), [0; 0]);
    let (fits, long) = ("a".repeat(200), "a".repeat(201));
    assert_eq!(lines(&format!("| {fits} | b |\n| b | {long} |\n")), [2]);

    let sentences = |text: &str| long_sentences(text).iter().map(|(at, _)| *at).collect::<Vec<_>>();
    let (forty, more) = ("word ".repeat(40), "word ".repeat(41));
    assert_eq!(sentences(&format!("{forty}\n\nA.\n{more}\n\n- {more}\n- b\n")), [3, 6]);
    assert_eq!(sentences(&format!("{}`a b c` {}", "a ".repeat(30), "b ".repeat(9))), [0; 0]);
    assert_eq!(sentences(&format!("One (two.) [`three` four](f.md#a).\n{forty}\n")), [0; 0]);
    assert_eq!(sentences(&format!("Of Ziegler et al. {}", "word ".repeat(37))), [1]);
}

#[test]
fn links_lead_to_files_and_headings() {
    let found = all_documents();
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
