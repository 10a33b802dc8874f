//! The form of keys and values in a benchmark: numbers, or byte strings in pages of some size,
//! which the process chooses once: each size as a constant would be one more copy of all designs.

use super::arguments::BenchArguments;
use crate::designs::DesignName;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::report::Report;
use farleaf_bench::sizing::{NUMBERS_IN_PAGE, string_bytes_in_page, string_weights};
use farleaf_bench::strings::StringForm;
use farleaf_bench::trace::Trace;
use farleaf_command_line::usage;
use farleaf_dex::{EntryWeights, spreading_level};
use farleaf_page::{Bytes, CHOSEN, Fixed8};

/// The kind of keys and values in a run.
#[derive(Clone, Debug)]
pub(super) enum KeysAndValues {
    /// Numbers of 8 bytes.
    Numbers,
    /// Byte strings.
    Strings(StringForm<CHOSEN>),
}

/// Evaluates an expression for byte strings, or another for numbers.
macro_rules! by_form {
    ($form:expr, $strings:ident => $body:expr, $numbers:expr) => {
        match $form {
            KeysAndValues::Numbers => $numbers,
            KeysAndValues::Strings($strings) => $body,
        }
    };
}

impl KeysAndValues {
    /// The form of a workload's keys, or of a trace's, whose byte strings it takes.
    pub(super) fn new(
        arguments: &BenchArguments,
        trace: Option<&mut Trace>,
    ) -> anyhow::Result<Self> {
        let (form, n) = (&arguments.key_form, arguments.keys);
        let values = arguments.value_bytes.clone().unwrap_or(8..=8);
        let listed = trace.and_then(|trace| trace.strings.take());
        if form.is_none() && listed.is_none() {
            return match (&arguments.value_bytes, arguments.page_bytes, arguments.inline_bytes) {
                (None, 1024, None) => Ok(Self::Numbers),
                _ => usage(
                    "--value-bytes, --page-bytes and --inline-bytes need byte strings: --key-form, \
                     or a trace with keys that are text",
                ),
            };
        }
        if arguments.own_keys
            || arguments.balance
            || !arguments.moves.is_empty()
            || arguments.scan_intervals
        {
            return usage(
                "--key-form of byte strings cannot be combined with --own-keys, --balance, --move \
                 or --scan-intervals",
            );
        }
        if arguments.inline_bytes.is_some() && arguments.index != DesignName::Dex {
            return usage(format!(
                "--inline-bytes needs --index dex: {} has no values in blocks",
                arguments.index.name()
            ));
        }
        let inline = arguments.inline_bytes;
        let grows = arguments.workload.insert_share() > 0.0;
        Bytes::choose(arguments.page_bytes as usize / 8);
        let strings = match (listed, form) {
            (Some(keys), _) => StringForm::listed(keys, values, inline, false),
            (None, Some(form)) => StringForm::with_blocks(form, n, values, inline, grows),
            (None, None) => return Ok(Self::Numbers),
        };
        let of_trace =
            if form.is_none() { "; --hash-keys makes numbers of a trace's keys" } else { "" };
        strings.map(Self::Strings).or_else(|error| usage(format!("{error}{of_trace}")))
    }

    /// The loaded keys, by number.
    pub(super) fn keys(&self) -> Option<&KeySpace> {
        by_form!(self, strings => Some(strings.keys()), None)
    }

    /// Average size of a loaded record, in bytes.
    pub(super) fn record_bytes(&self) -> f64 {
        let sum = |(key, value)| key + value;
        by_form!(self, strings => sum(strings.record_bytes()), 16.0)
    }

    /// Upper bound of the average bytes that a record takes in pages, apart from free space.
    pub(super) fn bytes_in_page(&self) -> f64 {
        by_form!(self, strings => string_bytes_in_page(strings.stored_bytes()), NUMBERS_IN_PAGE)
    }

    /// Average length of a loaded key, in bytes, if keys are byte strings.
    pub(super) fn string_bytes(&self) -> Option<f64> {
        by_form!(self, strings => Some(strings.record_bytes().0), None)
    }

    /// Upper bound of the average size of a record's block, in bytes.
    pub(super) fn bytes_in_blocks(&self) -> f64 {
        by_form!(self, strings => strings.block_bytes(), 0.0)
    }

    /// The placement level that spreads a tree of `records` over the memory servers.
    pub(super) fn spreading_level(&self, records: u64, fill: f64, memory_servers: u16) -> u8 {
        let of_layout = match self {
            Self::Numbers => spreading_level::<Fixed8>,
            Self::Strings(_) => spreading_level::<Bytes<CHOSEN>>,
        };
        let weights = match self {
            Self::Numbers => EntryWeights::default(),
            _ => string_weights(self.bytes_in_page()),
        };
        of_layout(records, weights, fill, memory_servers)
    }

    /// Fills in the settings of a report that depend on the form of keys.
    pub(super) fn say(&self, arguments: &BenchArguments, report: &mut Report) {
        let Self::Strings(strings) = self else { return };
        let (key, value) = strings.record_bytes();
        report.key_form = Some(match &arguments.key_form {
            Some(form) => form.to_string(),
            None => "trace".to_owned(),
        });
        report.key_bytes = Some(key);
        report.value_bytes = Some(value);
        report.page_bytes = Some(arguments.page_bytes);
    }
}
