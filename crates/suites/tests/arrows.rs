//! The layers: which module may use which, and conventions that every file must follow. The tests
//! read the sources, so that a dependency against the arrows fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder, and those that it may use.
type Folder = (&'static str, &'static [&'static str]);

/// The folders of the library's crates, each with the folders of the same crate that it may use.
/// `.` stands for the files that are in no folder. `ARCHITECTURE.md` draws the crates.
const FOLDERS: [(&str, &[Folder]); 6] = [
    ("page", &[(".", &["bytes"]), ("bytes", &["."]), ("radix", &["."]), ("table", &[])]),
    ("pool", &[(".", &[]), ("wire", &[]), ("server", &["wire"]), ("remote", &["wire"])]),
    ("index", &[(".", &[]), ("partition", &["."]), ("client", &["partition", "."])]),
    ("dex", &[(".", &["cache"]), ("blocks", &["."]), ("cache", &[])]),
    (
        "dlsm",
        &[
            (".", &["memtable", "remote", "shard"]),
            ("memtable", &["."]),
            ("parts", &[".", "remote", "shard"]),
            ("remote", &[]),
            ("shard", &["."]),
        ],
    ),
    (
        "trees",
        &[
            (".", &[]),
            ("entry_lock", &[]),
            ("one_sided", &["entry_lock", "."]),
            ("coarse", &[]),
            ("fine", &["one_sided", "."]),
            ("hybrid", &["one_sided", "."]),
            ("sherman", &["one_sided"]),
            ("chime", &["one_sided"]),
            ("smart", &["entry_lock", "."]),
        ],
    ),
];

/// What test files may use in addition, because they start whole clusters.
const TESTS: [(&str, &str); 1] = [("pool/remote/identity_tests.rs", "server")];

/// All that is a library: what the crates of programs, suites and comparisons stand on.
const LIBRARY: [&str; 7] = [
    "farleaf-fabric",
    "farleaf-page",
    "farleaf-pool",
    "farleaf-index",
    "farleaf-dex",
    "farleaf-dlsm",
    "farleaf-trees",
];

/// The crates, each with the project's crates that it may depend on: of the library so many of
/// [`LIBRARY`], from the first, and others.
const CRATES: [(&str, usize, &[&str]); 22] = [
    ("fabric", 0, &[]),
    ("page", 1, &[]),
    ("pool", 2, &[]),
    ("index", 3, &[]),
    // The designs, of which none uses another one.
    ("dex", 4, &[]),
    // Uses the suites in its tests.
    ("dlsm", 4, &["farleaf-suites"]),
    ("trees", 4, &[]),
    ("designs", 7, &[]),
    // Uses the designs only in its tests.
    ("suites", 7, &[]),
    ("far-memory", 3, &[]),
    // Uses the library only in its tests, which run every design over a device.
    ("fabric-verbs", 7, &["farleaf-suites"]),
    ("bench", 7, &["farleaf-suites"]),
    ("history", 4, &[]),
    ("sim", 7, &["farleaf-bench", "farleaf-designs", "farleaf-history"]),
    ("cluster", 6, &["farleaf-fabric-verbs", "farleaf-suites"]),
    // Uses the benchmarks, the simulator and the suites only in examples and tests; of the CLI only
    // the gateway uses this crate.
    ("farleaf", 5, &["farleaf-cluster", "farleaf-bench", "farleaf-sim", "farleaf-suites"]),
    // A protocol, which knows no index.
    ("resp", 0, &[]),
    ("command-line", 7, &["farleaf-bench"]),
    // The product, which links neither the simulator nor the experiments.
    (
        "cli",
        6,
        &[
            "farleaf",
            "farleaf-bench",
            "farleaf-cluster",
            "farleaf-command-line",
            "farleaf-history",
            "farleaf-resp",
            "farleaf-suites",
        ],
    ),
    // Uses the suites only in tests of designs that are added.
    (
        "lab",
        7,
        &[
            "farleaf-bench",
            "farleaf-command-line",
            "farleaf-designs",
            "farleaf-fabric-verbs",
            "farleaf-sim",
            "farleaf-suites",
        ],
    ),
    ("far-alloc", 3, &["farleaf-far-memory"]),
    ("compare", 7, &["farleaf-bench"]),
];

/// Crates that are workspaces of their own.
const ELSEWHERE: [(&str, &[&str]); 1] =
    [("far-tpch", &["farleaf-fabric", "farleaf-far-alloc", "farleaf-far-memory"])];

/// The folders of sources that are a library.
fn library_folders() -> impl Iterator<Item = String> {
    LIBRARY.iter().map(|name| format!("crates/{}/src", name.strip_prefix("farleaf-").unwrap()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("cannot read the folder") {
        let path = entry.expect("cannot read the folder's entries").path();
        if path.is_dir() {
            // What a workspace of its own builds has sources, too.
            if !path.ends_with("target") {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

fn files_below(folder: &str) -> Vec<(String, String)> {
    let (base, mut paths) = (root().join(folder), Vec::new());
    rust_files(&base, &mut paths);
    let relative = |path: &Path| path.strip_prefix(&base).unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (relative(path), fs::read_to_string(path).unwrap())).collect()
}

/// Code without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split("//").next().unwrap_or(""))
}

/// The modules that follow `crate::` anywhere in the code.
fn used_modules(text: &str) -> BTreeSet<String> {
    let code: String = code(text).collect::<Vec<_>>().join("\n");
    let first_word = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut used = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            // use crate::{page::Layout, wire::{Request, Reply}};
            Some(group) => {
                let (mut depth, mut start) = (0, true);
                for (offset, symbol) in group.char_indices() {
                    match symbol {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        symbol if start && symbol.is_alphanumeric() => {
                            used.insert(first_word(&group[offset..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
            None => {
                used.insert(first_word(rest));
            }
        }
    }
    used
}

#[test]
fn folders_use_only_what_they_may() {
    let mut wrong = Vec::new();
    for (name, table) in FOLDERS {
        let table: BTreeMap<&str, &[&str]> = table.iter().copied().collect();
        for (file, text) in files_below(&format!("crates/{name}/src")) {
            let folder = file.split_once('/').map_or(".", |(folder, _)| folder);
            let Some(may) = table.get(folder) else {
                wrong.push(format!("{name}/{file}: {folder} is in no table"));
                continue;
            };
            let of_test = TESTS.iter().find(|(test, _)| *test == format!("{name}/{file}"));
            for used in used_modules(&text) {
                let used = if table.contains_key(used.as_str()) { used.as_str() } else { "." };
                let is_tested = of_test.is_some_and(|(_, extra)| *extra == used);
                if used != folder && !may.contains(&used) && !is_tested {
                    wrong.push(format!("{name}/{file} uses {used}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the arrows: {wrong:#?}");
}

#[test]
fn crates_depend_only_on_what_they_may() {
    let of_workspace = CRATES.map(|(name, library, others)| {
        (name, LIBRARY[..library].iter().chain(others).copied().collect::<Vec<_>>())
    });
    let elsewhere = ELSEWHERE.map(|(name, may)| (name, may.to_vec()));
    for (name, may) in of_workspace.iter().chain(&elsewhere) {
        let manifest =
            fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        for line in manifest.lines().filter(|line| line.starts_with("farleaf")) {
            let dependency = line.split(['.', ' ', '=']).next().unwrap();
            assert!(may.contains(&dependency), "crate {name} depends on {dependency}");
        }
    }
    let folders = fs::read_dir(root().join("crates")).unwrap().count();
    assert_eq!(folders, CRATES.len() + ELSEWHERE.len(), "a crate is in no table");
}

/// Those who deploy `farleaf` compile and link neither the simulator nor the experiments, and only
/// the designs that clusters serve.
#[test]
fn the_product_links_no_laboratory() {
    let (mut linked, mut waiting) = (BTreeSet::new(), vec!["cli".to_owned()]);
    while let Some(name) = waiting.pop() {
        let manifest =
            fs::read_to_string(root().join("crates").join(&name).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        for line in dependencies.lines().take_while(|line| !line.starts_with('[')) {
            let dependency = line.split(['.', ' ', '=']).next().unwrap();
            let ours = dependency.strip_prefix("farleaf-");
            if linked.insert(dependency.to_owned()) {
                waiting.extend(ours.map(str::to_owned));
            }
        }
    }
    assert!(linked.contains("farleaf-cluster") && linked.contains("farleaf-fabric"));
    let laboratory =
        ["sim", "lab", "designs", "trees", "suites"].map(|name| format!("farleaf-{name}"));
    for laboratory in laboratory.iter().map(String::as_str).chain(["plotters"]) {
        assert!(!linked.contains(laboratory), "farleaf links {laboratory}");
    }
}

/// Otherwise the model checker could not replace them.
#[test]
fn atomics_and_locks_come_from_one_place() {
    let exempt = ["sync.rs", "executor.rs"];
    for folder in library_folders().chain(["crates/fabric-verbs/src".to_owned()]) {
        for (file, text) in files_below(&folder) {
            let forbidden = |line: &str| {
                ["std::sync::atomic", "std::sync::Mutex", "std::sync::RwLock", "std::sync::Arc"]
                    .iter()
                    .any(|path| line.contains(path))
            };
            if exempt.contains(&file.as_str()) {
                continue;
            }
            assert!(!code(&text).any(forbidden), "{folder}/{file} goes past sync.rs");
        }
    }
}

#[test]
fn no_file_is_too_long_and_no_module_is_called_util() {
    for (file, text) in files_below("crates") {
        assert!(text.lines().count() <= 1_000, "{file} has more than 1,000 lines");
        assert!(!file.contains("util") && !file.contains("common"), "{file}: say what it is for");
    }
}

/// The types that implement `Drop`.
fn guards(text: &str) -> impl Iterator<Item = String> {
    let name = |line: &str| {
        let (_, rest) = line.split_once("Drop for ")?;
        Some(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
    };
    code(text).filter(|line| line.trim_start().starts_with("impl")).filter_map(name)
}

/// The guards built in an argument of `then_some`, which always evaluates its argument: an unneeded
/// guard is dropped, and releases what another guard holds.
fn guards_made_in_vain(text: &str, guards: &BTreeSet<String>) -> Vec<String> {
    let code: String = code(text).collect::<Vec<_>>().join("\n");
    let made = |at: usize| -> Option<String> {
        let rest = code[at..].trim_start();
        let path: String =
            rest.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
        let is_made = rest[path.len()..].trim_start().starts_with(['(', '{']);
        path.split("::").find(|part| is_made && guards.contains(*part)).map(str::to_owned)
    };
    code.match_indices("then_some(").filter_map(|(at, word)| made(at + word.len())).collect()
}

#[test]
fn no_guard_is_made_only_to_be_refused() {
    let folders = library_folders().chain(["crates/fabric-verbs/src".to_owned()]);
    let files: Vec<_> = folders.flat_map(|folder| files_below(&folder)).collect();
    let guards: BTreeSet<String> = files.iter().flat_map(|(_, text)| guards(text)).collect();
    assert!(guards.contains("MoveRight") && guards.contains("PageHold"), "{guards:?}");
    for (file, text) in &files {
        assert_eq!(guards_made_in_vain(text, &guards), [""; 0], "{file}");
    }
    let wrong =
        "fn begin(&self) { (!self.busy.swap(true, AcqRel)).then_some(MoveRight(&self.busy)) }";
    assert_eq!(guards_made_in_vain(wrong, &guards), ["MoveRight"]);
}

#[test]
fn comments_fit_100_columns() {
    let is_too_wide = |line: &&str| {
        let is_comment = line.trim_start().starts_with("//");
        is_comment && line.chars().count() > 100 && !line.contains("://")
    };
    assert!(is_too_wide(&format!("// {}", "wide ".repeat(20)).as_str()));
    for folder in ["crates", "fuzz"] {
        for (file, text) in files_below(folder) {
            assert_eq!(text.lines().find(is_too_wide), None, "{folder}/{file}");
        }
    }
}

/// The ids of the invariants that the head of a file declares, such as `C1. Word 0 of a frame is
/// …`, at the beginning of a list item or a sentence.
fn declared_invariants(text: &str) -> BTreeSet<String> {
    let head = text.lines().map_while(|line| line.strip_prefix("//!"));
    let words: Vec<&str> = head.flat_map(|line| line.split_whitespace().chain(["\n"])).collect();
    let is_id = |word: &str| {
        let letters = word.chars().take_while(char::is_ascii_uppercase).count();
        let number = &word[letters..];
        (1..=2).contains(&letters)
            && (1..=2).contains(&number.len())
            && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut declared = BTreeSet::new();
    let mut before = ".";
    for word in words {
        if word == "\n" {
            continue;
        }
        let begins = before == "-" || before.ends_with(['.', ';', ':', '*']);
        if let Some(id) = word.strip_suffix(['.', ':'])
            && begins
            && is_id(id.rsplit('.').next().unwrap_or(id))
        {
            declared.insert(id.to_owned());
        }
        before = word;
    }
    declared
}

#[test]
fn invariants_have_names_of_their_own() {
    let example = "//! *Invariants*: lock.K1. a b (F3). K2. c\n//! - Q3: see K4. or\nuse K9. x\n";
    let declared = declared_invariants(example);
    assert_eq!(declared.iter().map(String::as_str).collect::<Vec<_>>(), ["K2", "Q3", "lock.K1"]);
    let mut homes: BTreeMap<String, String> = BTreeMap::new();
    for (file, text) in files_below("crates") {
        for id in declared_invariants(&text) {
            if let Some(other) = homes.insert(id.clone(), file.clone()) {
                panic!("{id} is declared in {other} and in {file}: say `module.{id}`");
            }
        }
    }
    assert!(homes.len() > 150, "{homes:?}");
}

/// Files of one folder that use each other in a circle, by crate and folder. The head of the
/// folder's `mod.rs` or `lib.rs` explains each circle.
const CIRCLES: &[(&str, &[&str])] = &[
    ("page/", &["entries8", "fixed8"]),
    ("page/", &["layout", "view"]),
    ("pool/remote/", &["commit", "identity", "leaf_protocol", "lock", "pages"]),
    ("fabric-verbs/", &["cluster", "endpoint", "link"]),
    ("fabric/shm/", &["connection", "endpoint"]),
    ("fabric/sim/", &["endpoint", "events", "op", "server", "world"]),
    ("fabric/tcp/", &["cluster", "endpoint", "link"]),
    ("farleaf/", &["confined", "cores", "engine", "runtime", "slot", "threads"]),
    ("farleaf/", &["index", "scan"]),
];

/// The paths that begin with `crate::` or `super::` in code, with `{…}` expanded.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let is_inner = |c: char| c.is_alphanumeric() || "_:".contains(c);
            if !code[..at].ends_with(is_inner) {
                expand("", &code[at..], &mut found);
            }
        }
    }
    found
}

/// Adds the paths of the tree at the beginning of `tree` to `found`. Returns the text after it.
fn expand<'a>(prefix: &str, tree: &'a str, found: &mut Vec<String>) -> &'a str {
    let end = tree.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).unwrap_or(tree.len());
    let (path, mut rest) = tree.split_at(end);
    let path = format!("{prefix}{path}");
    if !path.ends_with("::") || !rest.starts_with('{') {
        found.push(path);
        return rest;
    }
    while !rest.is_empty() {
        // After `{` or `,`.
        rest = rest[1..].trim_start();
        if !rest.starts_with('}') {
            rest = expand(&path, rest, found);
            // Also skip `as name`.
            rest = &rest[rest.find([',', '}']).unwrap_or(rest.len())..];
        }
        if let Some(behind) = rest.strip_prefix('}') {
            return behind;
        }
    }
    rest
}

/// A crate's modules by their paths, such as `index::dex::`; the crate itself is the empty path.
struct Modules {
    code: BTreeMap<String, String>,
    /// By module: the names that it re-exports from its children, with their paths.
    exports: BTreeMap<String, BTreeMap<String, String>>,
}

impl Modules {
    fn of_crate(name: &str) -> Self {
        let mut code = BTreeMap::new();
        for (file, text) in files_below(&format!("crates/{name}/src")) {
            let path = file.trim_end_matches(".rs").replace('/', "::") + "::";
            let is_folder = |end: &&&str| path == ***end || path.ends_with(&format!("::{end}"));
            let folder = ["mod::", "lib::", "main::"].iter().find(is_folder);
            let path = folder.map_or(path.as_str(), |end| path.strip_suffix(end).unwrap());
            let text = text.split("\nmod tests {").next().unwrap_or("");
            code.insert(path.to_owned(), self::code(text).collect::<Vec<_>>().join("\n"));
        }
        let mut exports = BTreeMap::new();
        for (module, text) in &code {
            let mut names = Vec::new();
            for (at, keyword) in text.match_indices("use ") {
                expand("", &text[at + keyword.len()..], &mut names);
            }
            let child = |path: &String| {
                let first = path.split("::").next().unwrap_or("");
                code.contains_key(&format!("{module}{first}::"))
            };
            let named = names.into_iter().filter(child).map(|path| {
                let name = path.rsplit("::").next().unwrap_or("").to_owned();
                (name, format!("{module}{path}"))
            });
            exports.insert(module.clone(), named.collect());
        }
        Self { code, exports }
    }

    /// The module that defines what `path` names in `module`.
    fn home(&self, module: &str, path: &str) -> String {
        let (mut home, mut rest) = (module.to_owned(), path);
        if let Some(of_crate) = rest.strip_prefix("crate::") {
            (home, rest) = (String::new(), of_crate);
        }
        while let Some(above) = rest.strip_prefix("super::") {
            let parent = home.trim_end_matches("::").rfind("::").map_or(0, |at| at + 2);
            home.truncate(parent);
            rest = above;
        }
        loop {
            let (name, behind) = rest.split_once("::").unwrap_or((rest, ""));
            let child = format!("{home}{name}::");
            let export = self.exports.get(&home).and_then(|names| names.get(name));
            (home, rest) = match export {
                _ if self.code.contains_key(&child) => (child, behind),
                Some(path) => return self.home("", path),
                None => return home,
            };
        }
    }

    /// By folder and module in it: the modules of the same folder that it uses.
    fn uses(&self) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
        let mut uses: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (module, code) in &self.code {
            for path in paths(code) {
                let home = self.home(module, &path);
                let (mut from, mut to) = (module.split_inclusive("::"), home.split_inclusive("::"));
                let mut folder = String::new();
                while let (Some(user), Some(used)) = (from.next(), to.next()) {
                    if user != used {
                        let users = uses.entry(folder).or_default();
                        let used = used.trim_end_matches("::").to_owned();
                        let user = user.trim_end_matches("::").to_owned();
                        users.entry(user).or_default().insert(used);
                        break;
                    }
                    folder.push_str(user);
                }
            }
        }
        uses
    }
}

/// The maximal sets of modules that use each other, directly or indirectly.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<&str>> {
    let reached = |from: &str| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(module) = open.pop() {
            for used in uses.get(&module).into_iter().flatten() {
                if reached.insert(used.clone()) {
                    open.push(used.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&str, _> =
        uses.keys().map(|from| (from.as_str(), reached(from))).collect();
    let circle = |module: &str| {
        let both =
            |other: &&str| reached[module].contains(*other) && reached[other].contains(module);
        reached.keys().copied().filter(both).collect::<BTreeSet<_>>()
    };
    reached.keys().map(|module| circle(module)).filter(|circle| !circle.is_empty()).collect()
}

#[test]
fn files_of_a_folder_use_each_other_in_no_circle_but_those_explained() {
    assert_eq!(
        paths("use super::{A, b::{C, D as E}, f::G}; fn f() { crate::x::y(super::super::z) }"),
        ["crate::x::y", "super::A", "super::b::C", "super::b::D", "super::f::G", "super::super::z"],
    );
    let mut found = BTreeSet::new();
    let crates = CRATES.iter().map(|(name, ..)| *name);
    for name in crates.chain(ELSEWHERE.map(|(name, _)| name)) {
        for (folder, uses) in Modules::of_crate(name).uses() {
            for circle in circles(&uses) {
                let folder = format!("{name}/{}", folder.replace("::", "/"));
                found.insert((folder, circle.into_iter().map(str::to_owned).collect::<Vec<_>>()));
            }
        }
    }
    let explained = CIRCLES.iter().map(|(folder, files)| {
        ((*folder).to_owned(), files.iter().map(|&file| file.to_owned()).collect())
    });
    assert_eq!(found, explained.collect::<BTreeSet<_>>(), "found, and explained");
}
