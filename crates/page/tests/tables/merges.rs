//! Merges of tables: what survives, where tables end, and damaged sources.

use super::*;

/// A merge of `tables` with pieces of `piece` words, steps of `budget`; the tables that come out.
/// Reading begins where the range does.
fn merge(
    tables: &[Vec<Table>],
    options: CompactionOptions,
    kind: IndexKind,
    (piece, budget): (usize, u64),
) -> Result<Vec<Table>, CompactionError> {
    let lower = options.range.lower.clone().unwrap_or_default();
    let begin = |source: &Vec<Table>| {
        source.first().map_or(0, |table| table.index.seek(lower.key()).unwrap() as usize)
    };
    let mut fed: Vec<_> = tables.iter().map(|source| (0, begin(source), false)).collect();
    let mut merge = Compaction::new(tables.len(), options);
    let mut outputs = Vec::new();
    let (mut builder, mut words) = (SsTableBuilder::new(100, 3, kind), Vec::new());
    loop {
        match merge.step(budget, &mut builder, &mut words)? {
            CompactionProgress::Spent => {}
            CompactionProgress::NeedsInput(source) => {
                let (table, word, has_begun) = &mut fed[source];
                match tables[source].get(*table) {
                    None => merge.end(source)?,
                    Some(from) => {
                        if !*has_begun {
                            merge.begin(source, from.meta.footer.table, &from.meta.clip)?;
                        }
                        let piece = &from.data()[*word..from.data().len().min(*word + piece)];
                        merge.feed(source, piece)?;
                        (*word, *has_begun) = (*word + piece.len(), true);
                        if *word == from.data().len() {
                            (*table, *word, *has_begun) = (*table + 1, 0, false);
                        }
                    }
                }
            }
            progress => {
                let next = SsTableBuilder::new(builder.table() + 1, 3, kind);
                let done = std::mem::replace(&mut builder, next);
                outputs.extend(Table::finish(done, std::mem::take(&mut words)));
                if progress == CompactionProgress::Done {
                    let counts = merge.counts();
                    let records = outputs.iter().map(|table| table.meta.footer.records);
                    assert_eq!(counts.records_out, records.sum::<u64>());
                    assert!(counts.records_in >= counts.records_out);
                    return Ok(outputs);
                }
            }
        }
    }
}

fn options() -> CompactionOptions {
    CompactionOptions {
        range: SsTableClip::default(),
        snapshots: Vec::new(),
        below: LowerLevels::everything(),
        cuts: Vec::new(),
        table_words: u32::MAX,
    }
}

fn contents(tables: &[Table]) -> Versions {
    let mut found = Versions::new();
    for table in tables {
        let run = RecordRun::new(table.data(), table.meta.footer.table).unwrap();
        let mut cursor = RecordCursor::at_start(&run);
        while let Some(record) = cursor.next().unwrap() {
            let (version, value) = version_of(record);
            assert!(found.last_key_value().is_none_or(|(last, _)| *last < version));
            found.insert(version, value);
        }
    }
    found
}

/// The versions that stay, by the definitions of lsm.J5 and lsm.J6.
fn survivors(versions: &Versions, snapshots: &[u64], covered: impl Fn(&[u8]) -> bool) -> Versions {
    let stays = |(version, value): &(&Version, &Value)| {
        let (key, sequence) = (&version.0, version.1.0);
        let newest = |bound: u64| {
            let mut all = versions.keys().filter(|other| other.0 == *key && other.1.0 <= bound);
            all.next().is_some_and(|other| other.1.0 == sequence)
        };
        let is_seen = newest(u64::MAX) || snapshots.iter().any(|&bound| newest(bound));
        let hides = covered(key) || snapshots.iter().any(|&bound| bound < sequence);
        is_seen && (value.is_some() || hides)
    };
    let kept = versions.iter().filter(stays);
    kept.map(|(version, value)| (version.clone(), value.clone())).collect()
}

proptest! {
    /// Any distribution of versions over sources, any pieces and steps.
    #[test]
    fn merges_keep_what_readers_can_see(
        versions in versions(),
        homes in vec(0..5_usize, 1..50),
        snapshots in vec(0..60_u64, 0..4),
        below in prop_oneof![
            1 => Just(None),
            3 => vec((key(), key()), 0..4).prop_map(Some),
        ],
        range in (any::<bool>(), any::<bool>(), key(), key()),
        cuts in btree_set(key(), 0..4),
        kind in 0..KINDS.len(),
        sizes in (1..600_usize, 1..300_u64, prop_oneof![1..500_u32, Just(u32::MAX)]),
    ) {
        let (kind, (piece, budget, table_words)) = (KINDS[kind], sizes);
        let mut parts = vec![Versions::new(); 5];
        for ((version, value), home) in versions.iter().zip(homes.iter().cycle()) {
            parts[*home].insert(version.clone(), value.clone());
        }
        // The last source is a run of two tables, between whose keys it changes.
        let mut last = parts.pop().unwrap();
        let middle = last.keys().nth(last.len() / 2).map(|version| version.0.clone());
        let end = middle.map(|middle| last.split_off(&(middle, Reverse(u64::MAX))));
        let run = [(20, last), (21, end.unwrap_or_default())];
        let sources = (10..).zip(parts).map(|part| vec![part]).chain([run.into()]);
        let build_all = |parts: Vec<(u64, Versions)>| {
            parts.iter().filter_map(|(id, part)| build(*id, kind, part)).collect()
        };
        let tables: Vec<Vec<Table>> = sources.map(build_all).collect();

        let ascending = |(one, two)| if one <= two { (one, two) } else { (two, one) };
        let ranges = below.map(|ranges| ranges.into_iter().map(ascending).collect::<Vec<_>>());
        let keys = |(low, high): &(Vec<u8>, Vec<u8>)| {
            (KeyBuf::from_bytes(low), KeyBuf::from_bytes(high))
        };
        let (lower, upper) = (range.0.then_some(range.2), range.1.then_some(range.3));
        let options = CompactionOptions {
            range: SsTableClip {
                lower: lower.as_ref().map(|key| KeyBuf::from_bytes(key)),
                upper: upper.as_ref().map(|key| KeyBuf::from_bytes(key)),
            },
            snapshots: snapshots.clone(),
            below: match &ranges {
                None => LowerLevels::everything(),
                Some(ranges) => LowerLevels::tables(ranges.iter().map(keys).collect()),
            },
            cuts: cuts.iter().map(|key| KeyBuf::from_bytes(key)).collect(),
            table_words,
        };
        let outputs = merge(&tables, options, kind, (piece, budget)).unwrap();

        let mut inside = versions.clone();
        inside.retain(|version, _| {
            lower.as_ref().is_none_or(|lower| *lower <= version.0)
                && upper.as_ref().is_none_or(|upper| version.0 < *upper)
        });
        let covered = |key: &[u8]| match &ranges {
            None => true,
            Some(ranges) => ranges.iter().any(|(low, high)| &low[..] <= key && key <= &high[..]),
        };
        let expected = survivors(&inside, &snapshots, covered);
        prop_assert_eq!(contents(&outputs), expected);
        // A reader sees the same as before: absence, where tombstones went.
        for key in inside.keys().map(|version| &version.0) {
            for &bound in snapshots.iter().chain([&MAX_SEQUENCE]) {
                let mut found = outputs.iter().filter_map(|table| table.get(key, bound).unwrap().0);
                let now = found.next().flatten();
                prop_assert_eq!(found.next(), None, "lsm.J7");
                prop_assert_eq!(now, self::expected(&inside, key, bound).flatten());
            }
        }
        for (index, table) in outputs.iter().enumerate() {
            // lsm.J7, and the ends of tables.
            let [smallest, largest] =
                [&table.meta.smallest, &table.meta.largest].map(|key| key.key().to_vec());
            prop_assert!(!cuts.iter().any(|cut| smallest < *cut && *cut <= largest));
            if let Some(next) = outputs.get(index + 1) {
                prop_assert!(table.meta.largest < next.meta.smallest);
            }
            let before_last = contents(std::slice::from_ref(table));
            let words = |version: &Vec<u8>, value: &Value| {
                record_words(version.len(), value.as_ref().map_or(0, Vec::len))
            };
            let others = before_last.iter().filter(|(version, _)| version.0 != largest);
            let others: usize = others.map(|(version, value)| words(&version.0, value)).sum();
            prop_assert!(others < table_words as usize);
        }
    }

}

proptest! {
    #![proptest_config(fixed_cases())]

    /// lsm.J8: a damaged source ends the merge, and what came out before is right.
    #[test]
    fn a_damaged_source_ends_the_merge(
        versions in versions(),
        damages in vec((any::<Choice>(), any::<u64>()), 1..4),
        sizes in (1..600_usize, 1..300_u64),
        swapped in any::<bool>(),
    ) {
        let mut parts = [Versions::new(), Versions::new()];
        for (index, (version, value)) in versions.iter().enumerate() {
            parts[index % 2].insert(version.clone(), value.clone());
        }
        let build_one = |(id, part)| build(id, KINDS[0], part).into_iter().collect();
        let mut tables: Vec<Vec<Table>> = (10..).zip(&parts).map(build_one).collect();
        let Some(table) = tables[0].first_mut() else { return Ok(()) };
        let intact = table.words.clone();
        let data = table.data().len();
        damage(&mut table.words[..data], &damages);
        let is_damaged = table.words != intact;
        if swapped && versions.len() > 4 {
            // The same table twice in one source is out of order.
            table.words = intact;
            let again = build(10, KINDS[0], &parts[0]).unwrap();
            tables[0].push(again);
        }
        let has_swapped = swapped && versions.len() > 4;
        let merged = merge(&tables, options(), KINDS[0], sizes);
        if is_damaged || has_swapped {
            let is_of_source =
                matches!(merged, Err(CompactionError::Damaged(DamagedSsTable { table: 10, .. })));
            prop_assert!(is_of_source);
        } else {
            prop_assert_eq!(contents(&merged.unwrap()), survivors(&versions, &[], |_| true));
        }
    }
}

proptest! {
    /// A merge that is cut into half-open ranges, for several workers, loses no key at a boundary
    /// and takes none twice. The paper's published code reads as if it lost one.
    #[test]
    fn merges_of_ranges_make_up_the_whole(
        versions in versions(),
        bounds in btree_set(key(), 0..5),
        kind in 0..KINDS.len(),
        sizes in (1..600_usize, 1..300_u64),
        workers in 1..6_u32,
    ) {
        let mut parts = [Versions::new(), Versions::new(), Versions::new()];
        for (index, (version, value)) in versions.iter().enumerate() {
            parts[index % 3].insert(version.clone(), value.clone());
        }
        let build = |(id, part)| build(id, KINDS[kind], part).into_iter().collect();
        let tables: Vec<Vec<Table>> = (10..).zip(&parts).map(build).collect();
        // At least one bound is a key of the inputs.
        let own = versions.keys().nth(versions.len() / 2).map(|version| version.0.clone());
        let bounds: BTreeSet<Vec<u8>> = bounds.into_iter().chain(own).collect();
        let bounds = bounds.iter().map(|key| KeyBuf::from_bytes(key));
        // And at the keys that an input's index suggests.
        let split = tables[0].first().map(|table| table.index.split_keys(workers).unwrap());
        let split = split.unwrap_or_default();
        prop_assert!(split.is_sorted_by(|one, other| one < other));
        prop_assert!(split.len() < workers as usize);
        let bounds: BTreeSet<KeyBuf> = bounds.chain(split).collect();
        let bounds: Vec<KeyBuf> = bounds.into_iter().collect();
        let mut outputs = Vec::new();
        for index in 0..=bounds.len() {
            let lower = index.checked_sub(1).map(|before| bounds[before].clone());
            let range = SsTableClip { lower, upper: bounds.get(index).cloned() };
            let options = CompactionOptions { range, ..options() };
            outputs.extend(merge(&tables, options, KINDS[kind], sizes).unwrap());
        }
        prop_assert_eq!(contents(&outputs), survivors(&versions, &[], |_| true));
    }
}

/// Equal versions in two sources are one, and a merge that failed stays failed.
#[test]
fn equal_versions_are_one() {
    let versions: Versions =
        (0..9).map(|number| ((vec![number], Reverse(4)), Some(vec![number]))).collect();
    let tables =
        || (1..3).map(|id| vec![build(id, KINDS[0], &versions).unwrap()]).collect::<Vec<_>>();
    let merged = merge(&tables(), options(), KINDS[0], (7, 9)).unwrap();
    assert_eq!(contents(&merged), versions);

    let tables = tables();
    let (mut builder, mut out) = (SsTableBuilder::new(7, 3, KINDS[0]), Vec::new());
    let cut_off = || {
        let mut merge = Compaction::new(1, options());
        merge.begin(0, 1, &SsTableClip::default()).unwrap();
        merge.feed(0, &tables[0][0].data()[..2]).unwrap();
        merge
    };
    let mut merge = cut_off();
    let error = merge.begin(0, 2, &SsTableClip::default()).unwrap_err();
    assert!(
        matches!(error, CompactionError::Damaged(DamagedSsTable { table: 1, .. })),
        "a record is cut off"
    );
    assert_eq!(merge.step(1, &mut builder, &mut out), Err(error));
    assert!(cut_off().end(0).is_err(), "the last record is cut off");
}

/// A table of the one-byte keys from `keys`, with values that name the table.
fn numbered(id: u64, keys: std::ops::Range<u8>) -> Table {
    let version = |key| ((vec![key], Reverse(100 - id)), Some(vec![id as u8; 8]));
    build(id, KINDS[0], &keys.map(version).collect()).unwrap()
}

fn between(lower: u8, upper: u8) -> SsTableClip {
    let key = |byte: u8| Some(KeyBuf::from_bytes(&[byte]));
    SsTableClip { lower: key(lower), upper: key(upper) }
}

/// lsm.J8: two records in each other's place are noticed if one of them belongs to the range, and
/// otherwise make no difference.
#[test]
fn disorder_at_the_ends_of_a_range_is_noticed() {
    const KEYS: u8 = 7;
    let intact = numbered(1, 0..KEYS);
    let words = intact.data().len() / usize::from(KEYS);
    for one in 0..KEYS {
        for other in one + 1..KEYS {
            for (lower, upper) in
                (0..KEYS).flat_map(|low| (low + 1..=KEYS).map(move |up| (low, up)))
            {
                let mut table = numbered(1, 0..KEYS);
                for word in 0..words {
                    let [one, other] = [one, other].map(|key| usize::from(key) * words + word);
                    table.words.swap(one, other);
                }
                let (mut builder, mut out) = (SsTableBuilder::new(2, 3, KINDS[0]), Vec::new());
                let options = CompactionOptions { range: between(lower, upper), ..options() };
                let mut merge = Compaction::new(1, options);
                let mut run = || -> Result<(), CompactionError> {
                    merge.begin(0, 1, &SsTableClip::default())?;
                    for record in table.data().chunks(words) {
                        merge.feed(0, record)?;
                        while merge.step(1, &mut builder, &mut out)? == CompactionProgress::Spent {}
                    }
                    merge.end(0)?;
                    while merge.step(1, &mut builder, &mut out)? != CompactionProgress::Done {}
                    Ok(())
                };
                let ended = run();
                let concerns = (lower..upper).contains(&one) || (lower..upper).contains(&other);
                let spans = one < lower && upper <= other;
                let case = (one, other, lower, upper);
                match ended {
                    Ok(()) => {
                        assert!(!concerns && !spans, "{case:?}");
                        assert_eq!(builder.records(), u64::from(upper - lower), "{case:?}");
                    }
                    Err(error) => {
                        assert!(concerns || spans, "{case:?}");
                        let is_order = matches!(
                            error,
                            CompactionError::Damaged(DamagedSsTable { table: 1, .. })
                        );
                        assert!(is_order, "{error}");
                    }
                }
            }
        }
    }
}

/// Each table has a clip of its own: what a shard has given away does not come back.
#[test]
fn a_merge_takes_the_keys_of_each_tables_clip() {
    let mut older = numbered(9, 0..10);
    older.meta.clip = between(0, 4);
    let mut newer = numbered(2, 0..10);
    newer.meta.clip = between(2, 6);
    let mut last = numbered(5, 6..9);
    last.meta.clip = between(7, 100);
    let range = between(1, 8);
    let options = CompactionOptions { range, ..options() };
    let merged = merge(&[vec![older], vec![newer, last]], options, KINDS[0], (3, 9)).unwrap();
    let found: Vec<_> = contents(&merged)
        .into_iter()
        .map(|((key, _), value)| (key[0], value.unwrap()[0]))
        .collect();
    assert_eq!(found, [(1, 9), (2, 2), (3, 2), (4, 2), (5, 2), (7, 5)]);
}
