//! Byte strings for the numbers that workloads draw: keys in the forms of published benchmarks or
//! from a file, and values of any length.
//!
//! Streams and drivers refer to keys by number ([`KeySpace::spread`]). [`StringForm`] converts them
//! to byte strings when the index is called, and converts the results back to numbers.
//!
//! *Invariants*
//! - strings.T1. Keys have the order of their numbers, and different numbers have different keys.
//! - strings.T2. The first eight bytes of a value are its number, so that any mixture of two values
//!   of the same length is detected.
//!
//! *Thread safety*: plain values; clones share what they hold.

use crate::keys::{KeySpace, mix64};
use farleaf_fabric::sync::Arc;
use farleaf_index::Naming;
use farleaf_page::{Bytes, Layout, LengthError, REFERENCE_BYTES};
use std::fmt::{Display, Formatter};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;

/// Separates a line of a file from the number that distinguishes its keys. It is below all bytes of
/// text, so that these keys precede any longer line.
const TILE: u8 = b'\t';
/// Separates a loaded key from the number of a new key after it.
const NEW: u8 = 0;
/// The bytes of a value's number.
const NUMBER_BYTES: usize = size_of::<u64>();

/// Where the loaded keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyForm {
    /// Keys of YCSB: `user` and 19 digits, 23 bytes. YCSB itself does not pad its hashes with
    /// zeros, so that its keys have mostly 21 to 23 bytes.
    Ycsb,
    /// Keys of dLSM's benchmark: 20 digits.
    Dlsm,
    /// Generated addresses of web pages in folders, about 56 bytes long, of which neighbours share
    /// most. As for a file, each address stands for several keys if there are many.
    Urls,
    /// The lines of a file. If there are fewer lines than keys, each line stands for several keys,
    /// distinguished by a number at the end; if there are more lines, an even selection is used.
    File(PathBuf),
}

impl FromStr for KeyForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("file:")) {
            ("ycsb", _) => Ok(Self::Ycsb),
            ("dlsm", _) => Ok(Self::Dlsm),
            ("urls", _) => Ok(Self::Urls),
            (_, Some(path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err("expected u64, ycsb, dlsm, urls or file:PATH".into()),
        }
    }
}

impl Display for KeyForm {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ycsb => f.write_str("ycsb"),
            Self::Dlsm => f.write_str("dlsm"),
            Self::Urls => f.write_str("urls"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Why keys and values cannot be generated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StringsError {
    /// The file of keys cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The file of keys has no lines.
    #[error("{} has no lines", .0.display())]
    Empty(PathBuf),
    /// A line of the file contains bytes that would put keys out of order.
    #[error("{} has lines with a tab or a byte below it", .0.display())]
    Control(PathBuf),
    /// Values are too short for a number.
    #[error("values must have at least {NUMBER_BYTES} bytes")]
    ShortValues,
    /// A key or a value is too long for the pages.
    #[error("{0}")]
    TooLong(LengthError),
}

#[derive(Debug)]
enum LoadedStrings {
    /// A prefix followed by this many digits.
    Digits { prefix: &'static str, digits: usize },
    /// The lines used, ascending and without duplicates, and how many keys each of them stands for.
    /// The last one may stand for fewer.
    Lines { lines: Vec<Vec<u8>>, tiles: u64, digits: usize },
}

/// Byte strings in the pages of a layout with `WORDS` words.
#[derive(Clone, Debug)]
pub struct StringForm<const WORDS: usize> {
    loaded: Arc<LoadedStrings>,
    keys: KeySpace,
    value_bytes: (usize, usize),
    /// Values longer than this are in blocks. `None` if no values are.
    inline_bytes: Option<usize>,
    is_decoded: bool,
}

/// The name of everything found, if results are not decoded.
const FOUND: u64 = 0;

impl<const WORDS: usize> StringForm<WORDS> {
    /// Creates `n` keys of this form, and values with lengths in this range. If `grows`, keys will
    /// be added later, and they are longer than loaded ones.
    ///
    /// # Errors
    /// [`StringsError`].
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn new(
        form: &KeyForm,
        n: u64,
        value_bytes: RangeInclusive<usize>,
        grows: bool,
    ) -> Result<Self, StringsError> {
        Self::with_blocks(form, n, value_bytes, None, grows)
    }

    /// Like [`StringForm::new`], but for an index that keeps values of more than `inline_bytes` in
    /// blocks, if that is set.
    ///
    /// # Errors
    /// [`StringsError`].
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn with_blocks(
        form: &KeyForm,
        n: u64,
        value_bytes: RangeInclusive<usize>,
        inline_bytes: Option<usize>,
        grows: bool,
    ) -> Result<Self, StringsError> {
        let loaded = match form {
            KeyForm::Ycsb => LoadedStrings::Digits { prefix: "user", digits: 19 },
            KeyForm::Dlsm => LoadedStrings::Digits { prefix: "", digits: 20 },
            KeyForm::Urls => tiled(urls(n.min(MAX_URLS)), n),
            KeyForm::File(path) => lines_of(path, n)?,
        };
        Self::of(loaded, n, value_bytes, inline_bytes, grows)
    }

    fn of(
        loaded: LoadedStrings,
        n: u64,
        value_bytes: RangeInclusive<usize>,
        inline_bytes: Option<usize>,
        grows: bool,
    ) -> Result<Self, StringsError> {
        let value_bytes = (*value_bytes.start(), *value_bytes.end());
        if value_bytes.0 < NUMBER_BYTES {
            return Err(StringsError::ShortValues);
        }
        let (loaded, keys) = (Arc::new(loaded), KeySpace::spread(n));
        let strings = Self { loaded, keys, value_bytes, inline_bytes, is_decoded: true };
        let key_bytes = strings.most_key_bytes() + if grows { 1 + NUMBER_BYTES } else { 0 };
        // If a value is in a block, the leaf stores only its reference.
        let most = inline_bytes.map_or(value_bytes.1, |inline| {
            value_bytes.1.min(inline.saturating_add(1)).max(REFERENCE_BYTES)
        });
        let (key, value) = (vec![0; key_bytes], vec![0; most]);
        Bytes::<WORDS>::check_record(&key, &value).map_err(StringsError::TooLong)?;
        Ok(strings)
    }

    /// These keys, which must ascend strictly, instead of generated ones; the rest as for
    /// [`StringForm::with_blocks`].
    ///
    /// # Errors
    /// [`StringsError`].
    ///
    /// # Panics
    /// If there are no keys.
    pub fn listed(
        keys: Vec<Vec<u8>>,
        value_bytes: RangeInclusive<usize>,
        inline_bytes: Option<usize>,
        grows: bool,
    ) -> Result<Self, StringsError> {
        debug_assert!(keys.is_sorted_by(|left, right| left < right), "T1");
        let n = keys.len() as u64;
        let loaded = LoadedStrings::Lines { lines: keys, tiles: 1, digits: 0 };
        Self::of(loaded, n, value_bytes, inline_bytes, grows)
    }

    /// The same byte strings, for indexes that may also have other records and for runs in real
    /// time: results are not decoded, and all have number 0. Decoding a key takes longer than
    /// looking it up.
    #[must_use]
    pub fn undecoded(mut self) -> Self {
        self.is_decoded = false;
        self
    }

    /// The numbers of the loaded keys.
    pub fn keys(&self) -> &KeySpace {
        &self.keys
    }

    /// Average length of a loaded key and of its value, in bytes.
    pub fn record_bytes(&self) -> (f64, f64) {
        let key = match &*self.loaded {
            LoadedStrings::Digits { prefix, digits } => (prefix.len() + digits) as f64,
            LoadedStrings::Lines { lines, tiles, digits } => {
                let [before @ .., last] = &lines[..] else { return (0.0, 0.0) };
                let before: u64 = before.iter().map(|line| line.len() as u64 * tiles).sum();
                let of_last = self.keys.len() - (lines.len() as u64 - 1) * tiles;
                let of_tiles = tile_bytes(*digits) as u64 * self.keys.len();
                let bytes = before + last.len() as u64 * of_last + of_tiles;
                bytes as f64 / self.keys.len() as f64
            }
        };
        (key, (self.value_bytes.0 + self.value_bytes.1) as f64 / 2.0)
    }

    /// Upper bound of the average size of a loaded key and of what a leaf stores for its value, in
    /// bytes.
    pub fn stored_bytes(&self) -> f64 {
        let (key, value) = self.record_bytes();
        let stored = match self.inline_bytes {
            Some(bytes) if bytes < self.value_bytes.0 => REFERENCE_BYTES as f64,
            Some(bytes) => value.min(bytes.max(REFERENCE_BYTES) as f64),
            None => value,
        };
        key + stored
    }

    /// Upper bound of the average size of a record's block, in bytes.
    pub fn block_bytes(&self) -> f64 {
        match self.inline_bytes {
            // Block sizes grow in steps of an eighth.
            Some(bytes) if bytes < self.value_bytes.1 => self.record_bytes().1.max(64.0) * 1.125,
            _ => 0.0,
        }
    }

    fn most_key_bytes(&self) -> usize {
        match &*self.loaded {
            LoadedStrings::Digits { prefix, digits } => prefix.len() + digits,
            LoadedStrings::Lines { lines, digits, .. } => {
                lines.iter().map(Vec::len).max().unwrap_or(0) + tile_bytes(*digits)
            }
        }
    }

    /// The loaded key at a position.
    fn loaded_key(&self, place: u64) -> Vec<u8> {
        match &*self.loaded {
            LoadedStrings::Digits { prefix, digits } => {
                // 64 bits have up to 20 digits.
                let number = self.keys.key(place) >> (20 - digits);
                format!("{prefix}{number:0digits$}").into_bytes()
            }
            LoadedStrings::Lines { lines, tiles, digits } => {
                let mut key = lines[(place / tiles) as usize].clone();
                if *digits > 0 {
                    key.push(TILE);
                    key.extend_from_slice(format!("{:0digits$}", place % tiles).as_bytes());
                }
                key
            }
        }
    }
}

/// Number of bytes that distinguish the keys of a line.
fn tile_bytes(digits: usize) -> usize {
    if digits > 0 { 1 + digits } else { 0 }
}

fn lines_of(path: &PathBuf, n: u64) -> Result<LoadedStrings, StringsError> {
    let text =
        std::fs::read(path).map_err(|error| StringsError::File { path: path.clone(), error })?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let lines: Vec<_> = lines.map(<[u8]>::to_vec).collect();
    if lines.is_empty() {
        return Err(StringsError::Empty(path.clone()));
    }
    if lines.iter().flatten().any(|byte| *byte <= TILE) {
        return Err(StringsError::Control(path.clone()));
    }
    Ok(tiled(lines, n))
}

/// Creates `n` keys from lines in any order.
fn tiled(mut lines: Vec<Vec<u8>>, n: u64) -> LoadedStrings {
    lines.sort_unstable();
    lines.dedup();
    let tiles = n.div_ceil(lines.len() as u64);
    let digits = if tiles > 1 { (tiles - 1).to_string().len() } else { 0 };
    let (used, all) = (u128::from(n.div_ceil(tiles)), lines.len() as u128);
    let place = |number: u128| (number * all / used) as usize;
    let lines = (0..used).map(|number| std::mem::take(&mut lines[place(number)])).collect();
    LoadedStrings::Lines { lines, tiles, digits }
}

/// Maximum number of generated addresses, as many as a toolchain's documentation has pages.
const MAX_URLS: u64 = 50_000;

/// Distinct addresses, each with a host, one to four folders and a page. A few hosts and folders
/// contain most of them.
fn urls(count: u64) -> Vec<Vec<u8>> {
    const HOSTS: [&str; 4] = ["docs.example.org", "example.com", "static.example.net", "wiki.test"];
    const FOLDERS: [&str; 12] = [
        "reference",
        "std",
        "collections",
        "iter",
        "traits",
        "archive",
        "2024",
        "images",
        "users",
        "sync",
        "atomic",
        "en-us",
    ];
    const PAGES: [&str; 5] = ["struct.", "trait.", "fn.", "index-", "constant."];
    // Take the smaller of two draws, so that the first ones are frequent.
    let skewed = |random: u64, length: usize| {
        let draw = |random: u64| random as usize % length;
        draw(random).min(draw(random >> 16))
    };
    let url = |number: u64| {
        let random = mix64(number);
        let mut url = format!("https://{}/", HOSTS[skewed(random, HOSTS.len())]);
        for depth in 0..1 + (random >> 32) % 4 {
            url += FOLDERS[skewed(mix64(random ^ depth), FOLDERS.len())];
            url.push('/');
        }
        let page = PAGES[(random >> 40) as usize % PAGES.len()];
        format!("{url}{page}{number:05x}.html").into_bytes()
    };
    (0..count).map(url).collect()
}

impl<const WORDS: usize> Naming<Bytes<WORDS>> for StringForm<WORDS> {
    /// The key of a new number is the preceding loaded key, followed by the distance from it.
    fn key_named(&self, name: u64) -> Vec<u8> {
        let Some((place, behind)) = self.keys.place_of(name) else { return Vec::new() };
        let mut key = self.loaded_key(place);
        if behind > 0 {
            key.push(NEW);
            key.extend_from_slice(&behind.to_be_bytes());
        }
        key
    }

    fn name_of_key(&self, key: &[u8]) -> Option<u64> {
        if !self.is_decoded {
            return Some(FOUND);
        }
        let place = self.keys.last_place(|place| self.loaded_key(place).as_slice() <= key);
        let first = self.keys.key(place);
        match key.strip_prefix(self.loaded_key(place).as_slice())? {
            [] => Some(first),
            [NEW, behind @ ..] => first.checked_add(u64::from_be_bytes(behind.try_into().ok()?)),
            _ => None,
        }
    }

    fn value_named(&self, name: u64) -> Vec<u8> {
        let (least, most) = self.value_bytes;
        let length = least + (mix64(name) % (most - least + 1) as u64) as usize;
        let mut value = Vec::with_capacity(length + NUMBER_BYTES);
        let mut word = name;
        while value.len() < length {
            value.extend_from_slice(&word.to_le_bytes());
            word = mix64(word);
        }
        value.truncate(length);
        value
    }

    fn name_of_value(&self, value: &[u8]) -> Option<u64> {
        if !self.is_decoded {
            return Some(FOUND);
        }
        let name = u64::from_le_bytes(*value.first_chunk()?);
        (self.value_named(name) == value).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::tests::TestFile;

    /// The numbers of loaded keys and of new ones between them, ascending.
    fn numbers(keys: &KeySpace) -> Vec<u64> {
        let behind = (0..keys.len()).filter_map(|place| keys.new_key(place, place));
        let mut numbers: Vec<_> = keys.records().map(|(key, _)| key).chain(behind).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn keep_order_and_names(strings: &StringForm<128>) {
        let numbers = numbers(strings.keys());
        let keys: Vec<_> = numbers.iter().map(|number| strings.key_named(*number)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "T1");
        for (number, key) in numbers.iter().zip(&keys) {
            assert_eq!(strings.name_of_key(key), Some(*number), "{key:?}");
            let value = strings.value_named(*number);
            assert_eq!(strings.name_of_value(&value), Some(*number));
        }
        assert_eq!(strings.name_of_key(b"nothing that was made"), None);
        let undecoded = strings.clone().undecoded();
        assert_eq!(undecoded.name_of_key(b"nothing that was made"), Some(FOUND));
        assert_eq!(undecoded.name_of_value(b""), Some(FOUND));
        assert_eq!(undecoded.key_named(numbers[0]), keys[0]);
    }

    #[test]
    fn every_form_keeps_order_and_names() {
        let text = b"b\nb/a\nb!\na/long/path\n\nzz\nb\n\xc3\xa4\n";
        let file = TestFile::new("lines", text);
        let forms =
            [KeyForm::Ycsb, KeyForm::Dlsm, KeyForm::Urls, KeyForm::File(file.path().into())];
        for form in forms {
            for n in [1, 3, 6, 7, 1000, 4321] {
                keep_order_and_names(&StringForm::new(&form, n, 8..=40, true).unwrap());
            }
        }
    }

    #[test]
    fn records_have_the_published_lengths() {
        let ycsb = StringForm::<512>::new(&KeyForm::Ycsb, 100, 900..=900, true).unwrap();
        let dlsm = StringForm::<128>::new(&KeyForm::Dlsm, 100, 8..=16, true).unwrap();
        assert_eq!((ycsb.record_bytes(), dlsm.record_bytes()), ((23.0, 900.0), (20.0, 12.0)));
        let first = ycsb.key_named(ycsb.keys().key(1));
        assert_eq!((first.len(), &first[..4]), (23, &b"user"[..]));
        assert_eq!(dlsm.key_named(dlsm.keys().key(99)).len(), 20);
        assert_eq!(ycsb.value_named(7).len(), 900);
        let lengths: Vec<_> = (0..100).map(|name| dlsm.value_named(name).len()).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&8), Some(&16)));
    }

    /// Lines that no key uses were once counted too.
    #[test]
    fn lengths_are_those_of_loaded_keys() {
        let file = TestFile::new("lengths", b"aa\nb\ncccc\nd\nee\nf\n");
        let form = KeyForm::File(file.path().into());
        for n in [1, 3, 4, 6, 7, 11, 100] {
            let strings = StringForm::<128>::new(&form, n, 8..=8, false).unwrap();
            let keys: Vec<_> = strings.keys().records().map(|(key, _)| key).collect();
            let lengths: Vec<_> = keys.iter().map(|key| strings.key_named(*key).len()).collect();
            let average = lengths.iter().sum::<usize>() as f64 / n as f64;
            assert_eq!((lengths.len() as u64, strings.record_bytes().0), (n, average), "{n} keys");
            assert_eq!(Some(strings.most_key_bytes()), lengths.into_iter().max(), "{n} keys");
        }
    }

    #[test]
    fn generated_addresses_share_most_of_their_bytes() {
        let urls = StringForm::<128>::new(&KeyForm::Urls, 20_000, 8..=8, true).unwrap();
        let keys: Vec<_> = urls.keys().records().map(|(key, _)| urls.key_named(key)).collect();
        let shared = |pair: &[Vec<u8>]| {
            pair[0].iter().zip(&pair[1]).take_while(|(one, other)| one == other).count()
        };
        let shared = keys.windows(2).map(shared).sum::<usize>() as f64 / keys.len() as f64;
        let (bytes, _) = urls.record_bytes();
        assert!((45.0..70.0).contains(&bytes), "{bytes}");
        assert!((0.7..0.95).contains(&(shared / bytes)), "{shared} of {bytes}");
    }

    #[test]
    fn a_mixture_of_values_has_no_name() {
        let strings = StringForm::<128>::new(&KeyForm::Dlsm, 10, 40..=40, true).unwrap();
        let (one, other) = (strings.value_named(1), strings.value_named(2));
        for at in 1..40 {
            let mixed: Vec<_> = one[..at].iter().chain(&other[at..]).copied().collect();
            assert_eq!(strings.name_of_value(&mixed), None, "T2: {at}");
        }
    }

    #[test]
    fn what_cannot_be_made_is_an_error() {
        let error = |form: &KeyForm, values| {
            StringForm::<128>::new(form, 10, values, true).map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(error(&KeyForm::Ycsb, 7..=9), "values must have at least 8 bytes");
        let long = error(&KeyForm::Ycsb, 8..=900);
        assert!(long.contains("the value has 900 bytes"), "{long}");
        assert!(error(&KeyForm::File("/nothing/here".into()), 8..=8).contains("/nothing/here"));
        let with_tab = TestFile::new("tab", b"a\tb\n");
        let error = error(&KeyForm::File(with_tab.path().into()), 8..=8);
        assert!(error.ends_with("lines with a tab or a byte below it"), "{error}");
        for text in ["", "file:", "u32", "YCSB"] {
            assert!(text.parse::<KeyForm>().is_err(), "{text}");
        }
    }
}
