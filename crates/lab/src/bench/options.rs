//! The list of all options of all designs, which is also `docs/options.md`.

use crate::designs::{DesignName, IndexOptions};
use clap::ValueEnum;
use farleaf_index::OptionField;
use std::fmt::Write as _;

const HEAD: &str = "\
# Options of the designs

`farleaf-lab bench --help-options` prints this page, from the declarations of the options. Each one is set by its name:

- `farleaf-lab bench --index dlsm --set dlsm.level0_stop=72` sets those of any design. Numbers may have a suffix, as
  `64Ki` and `20M`. Without a setting, `bench` chooses `placement_level` and the sizes of `dlsm` for the loaded data.
- `farleaf cluster` and `farleaf compute-server` take `--set` too: those of `dex` that a compute server has alone, for
  its cache, and those of `dlsm`, which all compute servers of an index must have alike. In their settings files they
  are in `[dex]` and `[dlsm]`.
- Scenario files of the simulator have them in `[design]`, and start from smaller sizes.

A value out of bounds is refused by a line that names the option, its bounds, and the flag or the file.
";

/// The page, in Markdown.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    for (names, fields) in designs() {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = write!(page, "\n## {}\n\n", names.join(" and "));
        page += "| option | default | values | meaning |\n| --- | --- | --- | --- |\n";
        for OptionField { name, help, bounds, value } in fields {
            let meaning = help.split_once(". ").map_or(help, |(first, _)| first);
            let meaning = meaning.trim_end_matches('.');
            let _ = writeln!(page, "| `{name}` | {value} | {bounds} | {meaning} |");
        }
    }
    page
}

/// The options of each design, with the names of those that have the same.
fn designs() -> Vec<(Vec<&'static str>, Vec<OptionField>)> {
    let mut designs: Vec<(Vec<_>, Vec<_>)> = Vec::new();
    for design in DesignName::value_variants() {
        let mut options = IndexOptions::default();
        let Some(options) = options.of_design(*design) else { continue };
        let fields = options.fields();
        match designs.iter_mut().find(|(_, known)| *known == fields) {
            Some((names, _)) => names.push(design.name()),
            None => designs.push((vec![design.name()], fields)),
        }
    }
    designs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::change_option;
    use farleaf_index::{OptionBounds, OptionChange, OptionValue};

    #[test]
    fn the_page_in_docs_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/options.md");
        let docs = std::fs::read_to_string(path).unwrap();
        assert!(docs == page(), "run `farleaf-lab bench --help-options >docs/options.md`");
    }

    fn set(design: DesignName, text: &str) -> Result<IndexOptions, String> {
        let change: OptionChange = text.parse().map_err(|error| format!("{error}"))?;
        let mut options = IndexOptions::default();
        change_option(&mut options, design, &change).map_err(|error| error.to_string())?;
        Ok(options)
    }

    /// Values that the option can have, and one that it cannot.
    fn samples(field: &OptionField) -> (Vec<String>, String) {
        match field.bounds {
            OptionBounds::Numbers(lowest, highest) => {
                let beyond = if highest < 1e18 { highest + 1.0 } else { -1.0 };
                let highest = highest.min(1e18);
                (vec![lowest.to_string(), highest.to_string()], beyond.to_string())
            }
            OptionBounds::Names(names) => {
                let names = names
                    .split([',', ' '])
                    .filter(|name| !matches!(*name, "" | "or" | "blocks:BYTES" | "coin:P"));
                let valid = names.take_while(|name| *name != "with").map(str::to_owned);
                (valid.collect(), "no-such-name".to_owned())
            }
        }
    }

    #[test]
    fn every_option_of_every_design_is_set_by_its_name() {
        let mut count = 0;
        for design in DesignName::value_variants() {
            let mut usual = IndexOptions::default();
            let Some(usual) = usual.of_design(*design) else { continue };
            for field in usual.fields() {
                let name = format!("{}.{}", design.name(), field.name);
                let (valid, beyond) = samples(&field);
                for value in valid {
                    let mut options = set(*design, &format!("{name}={value}")).unwrap();
                    let fields = options.of_design(*design).unwrap().fields();
                    let now = fields.iter().find(|now| now.name == field.name).unwrap();
                    let value = OptionValue::from(value.as_str());
                    assert_eq!(now.value.to_string(), value.to_string(), "{name}");
                    let others = fields.iter().zip(usual.fields());
                    let changed = others.filter(|(now, usual)| now.value != usual.value).count();
                    assert!(changed <= 1, "{name}");
                }
                let error = set(*design, &format!("{name}={beyond}")).unwrap_err();
                let named = format!("--set {name}={beyond}: `{}` must be", field.name);
                assert!(error.starts_with(&named) && !error.contains('\n'), "{error}");
                assert!(error.contains(&field.bounds.to_string()), "{error}");
                count += 1;
            }
        }
        assert!(count > 60, "only {count} options");
    }

    #[test]
    fn what_is_no_option_is_told_on_one_line() {
        for (text, expected) in [
            (
                "dex.scan=1",
                "--set dex.scan=1: unknown option `scan`: expected one of placement_level",
            ),
            ("rex.scan=1", "--set rex.scan=1: unknown design `rex`: expected one of coarse, fine"),
            ("dlsm.levels=2", "--set dlsm.levels=2 needs --index dlsm"),
            ("dex.scan_ahead", "expected DESIGN.OPTION=VALUE"),
            ("scan_ahead=1", "expected DESIGN.OPTION=VALUE"),
        ] {
            let error = set(DesignName::Dex, text).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
        }
        let error = set(DesignName::Local, "local.bytes=1").unwrap_err();
        assert!(error.contains("this design has no options"), "{error}");
    }
}
