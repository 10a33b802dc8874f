//! A client of compute servers that answer as each test demands: how it handles their answers, and
//! which requests it sends.

use farleaf_fabric::AnyFabric;
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{Calls, Cluster, Cpu, Region, ServiceCall};
use farleaf_index::client::{ClientIndex, ClientOptions};
use farleaf_index::{IndexAdmin, IndexError, RangeIndex, ScanRequest};
use farleaf_page::{EditAnswer, Fixed8};
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode};

type Ask = ClientRequest<Fixed8>;
type Told = ClientResponse<Fixed8>;

/// A compute server whose answers come from a function.
struct Puppet(Box<dyn Fn(Ask) -> Told + Send + Sync>);

impl Calls for Puppet {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, _cpu: &C, call: ServiceCall<'_>) {
        let ask = Ask::decode(call.request).expect("a client sends requests");
        call.reply.extend_from_slice(&(self.0)(ask).encode());
    }
}

type Client = ClientIndex<AnyFabric, Fixed8>;

/// A map of this epoch in which one compute server owns all keys.
fn map(epoch: u64, owner: u16) -> Told {
    Told::Map { epoch, boundaries: Vec::new(), owners: vec![owner] }
}

/// Runs `work` on a client of these compute servers.
fn with_servers<T: Send, W: Future<Output = T>>(
    puppets: Vec<Arc<Puppet>>,
    work: impl Fn(Client) -> W + Sync,
) -> T {
    let cluster = LocalCluster::start(LocalConfig::default(), puppets).unwrap();
    cluster.run_one(|fabric| async {
        let options = ClientOptions { deadline_ns: 20_000_000, request_ns: 0 };
        work(Client::open(fabric, options).await.unwrap()).await
    })
}

/// Runs `work` on a client of one compute server, which owns all keys.
fn with_client<T: Send, W: Future<Output = T>>(
    answers: impl Fn(Ask) -> Told + Send + Sync + 'static,
    work: impl Fn(Client) -> W + Sync,
) -> T {
    let puppet = Puppet(Box::new(move |ask| match ask {
        Ask::Map => map(1, 0),
        ask => answers(ask),
    }));
    with_servers(vec![Arc::new(puppet)], work)
}

/// The outcome of a bulk load if the compute server gives these answers to its end and to the
/// resume.
fn loads(end: Told, resume: Told) -> Result<u64, IndexError> {
    let answers = move |ask| match ask {
        Ask::Scan { .. } => Told::Records { records: Vec::new(), next: None },
        Ask::LoadReady { .. } => Told::LoadReady { version: 1, epoch: 1 },
        Ask::LoadEnd { .. } => end.clone(),
        Ask::Resume { .. } => resume.clone(),
        _ => Told::Done,
    };
    with_client(answers, |client| async move {
        client.bulk_load((0..10).map(|key| (key, key)), 0.7).await
    })
}

/// A client once reported that the index had stayed empty, because a compute server that resumes by
/// itself could not be reached at once. The tree had been replaced.
#[test]
fn a_load_is_complete_even_if_a_server_does_not_resume_at_once() {
    let loaded = Told::Loaded { boundaries: Vec::new() };
    assert_eq!(loads(loaded.clone(), Told::Done), Ok(10));
    for code in [ErrorCode::Contended, ErrorCode::NoMemoryServer, ErrorCode::Unavailable] {
        assert_eq!(loads(loaded.clone(), Told::Error(code)), Ok(10));
    }
}

/// The failed resume once hid that the tree may have been replaced.
#[test]
fn an_unknown_end_of_a_load_stays_unknown() {
    let end = Told::Error(ErrorCode::Indeterminate);
    for resume in [Told::Done, Told::Error(ErrorCode::Contended)] {
        let ended = loads(end.clone(), resume);
        assert!(matches!(ended, Err(IndexError::Indeterminate(_))), "{ended:?}");
    }
}

/// All records once went into one message, which has no room for more than 8,000 of them.
#[test]
fn any_number_of_records_is_upserted_in_order() {
    const RECORDS: u64 = 20_000;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let refusals = Mutex::new(vec![false, true, false, false, true]);
    let answers = move |ask| match ask {
        Ask::UpsertAll { records } => {
            if lock(&refusals).pop().unwrap_or(false) {
                return Told::Error(ErrorCode::Unavailable);
            }
            lock(&sees).extend(records);
            Told::Upserted { incarnation: 1 }
        }
        other => unreachable!("{other:?}"),
    };
    // Every key occurs three times.
    let records: Vec<_> = (0..RECORDS).map(|n| (n % (RECORDS / 3 + 1), n)).collect();
    let sent = records.clone();
    with_client(answers, |client| {
        let records = sent.clone();
        async move { client.upsert_all(records).await }
    })
    .unwrap();
    assert_eq!(*lock(&seen), records);
}

/// A redirected group once asked the former owner a second time, and the deadlines of its
/// operations began only after that.
#[test]
fn a_group_that_is_redirected_asks_the_former_owner_once() {
    const KEYS: u64 = 8;
    let (lookups, maps) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (asked, told) = (Arc::clone(&lookups), Arc::clone(&maps));
    let former = Puppet(Box::new(move |ask| match ask {
        Ask::Map if asked.load(Ordering::Relaxed) == 0 => map(1, 0),
        Ask::Map => {
            told.fetch_add(1, Ordering::Relaxed);
            map(2, 1)
        }
        Ask::Edit(_) => {
            asked.fetch_add(1, Ordering::Relaxed);
            Told::NotOwner { owner: 1, epoch: 2 }
        }
        other => unreachable!("{other:?}"),
    }));
    let owner = Puppet(Box::new(move |ask| match ask {
        Ask::Edit(edit) => Told::Edited(EditAnswer::from_lookup(Some(edit.key))),
        other => unreachable!("{other:?}"),
    }));
    let found = with_servers(vec![Arc::new(former), Arc::new(owner)], async |client| {
        client.multi_get(&(0..KEYS).collect::<Vec<_>>()).await
    });
    assert_eq!(found, Ok((0..KEYS).map(Some).collect()));
    let counted = (lookups.load(Ordering::Relaxed), maps.load(Ordering::Relaxed));
    assert_eq!(counted, (KEYS, 1), "lookups and maps");
}

/// An answer of an incarnation that has been there for long.
fn covered(incarnation: u64, epoch: u64) -> Told {
    Told::Covered { incarnation, age_ns: u64::MAX, epoch }
}

/// A flush once asked only the owners of the client's map, so it said ok although keys had moved to
/// another compute server and had been changed there.
#[test]
fn a_flush_asks_the_owners_of_the_newest_map() {
    let asked: Arc<[AtomicU64; 3]> = Arc::default();
    let owner = |number: u16, epoch: u64| {
        let asked = Arc::clone(&asked);
        Arc::new(Puppet(Box::new(move |ask| match ask {
            Ask::Map if asked[0].load(Ordering::Relaxed) == 0 => map(1, 0),
            // Keys have moved to 1, and all of them from 0 to 2.
            Ask::Map => {
                let (boundaries, owners) = (vec![100], vec![2, 1]);
                Told::Map { epoch: 3, boundaries, owners }
            }
            Ask::Flush | Ask::Collect => {
                asked[usize::from(number)].fetch_add(1, Ordering::Relaxed);
                covered(u64::from(number), epoch)
            }
            other => unreachable!("{other:?}"),
        })))
    };
    let flushed = with_servers(vec![owner(0, 3), owner(1, 3), owner(2, 3)], async |client| {
        (client.flush().await, client.collect().await)
    });
    assert_eq!(flushed, (Ok(()), Ok(())));
    let asked = [0, 1, 2].map(|number| asked[number].load(Ordering::Relaxed));
    assert_eq!(asked, [1, 2, 2], "the flush asked all, the collection those that own keys");
}

/// A flush was once sent again to the next incarnation of a compute server, which had nothing to
/// flush, and said ok for changes that were lost.
#[test]
fn a_flush_believes_only_the_incarnation_that_acknowledged() {
    let answers = [
        // The incarnations that answer an insert, a flush, a second flush; whether the second one
        // began before the first flush; and the outcomes.
        ((1, 1, 1), true, [true, true]),
        ((1, 2, 2), true, [false, true]),
        ((1, 1, 2), true, [true, true]),
        ((1, 1, 2), false, [true, false]),
        ((1, 2, 3), true, [false, true]),
    ];
    for ((inserted, first, second), was_there, expected) in answers {
        let flushes = AtomicU64::new(0);
        let answers = move |ask| match ask {
            Ask::Edit(_) => {
                Told::Changed { incarnation: inserted, answer: EditAnswer::from_lookup(None) }
            }
            Ask::Flush => match flushes.fetch_add(1, Ordering::Relaxed) {
                0 => covered(first, 1),
                _ if was_there => covered(second, 1),
                _ => Told::Covered { incarnation: second, age_ns: 0, epoch: 1 },
            },
            other => unreachable!("{other:?}"),
        };
        let flushed = with_client(answers, async |client| {
            client.upsert(&1, &1).await.unwrap();
            [client.flush().await, client.flush().await]
        });
        let lost = Err(IndexError::ChangesLost { compute_server: 0 });
        let expected = expected.map(|is_ok| if is_ok { Ok(()) } else { lost.clone() });
        assert_eq!(flushed, expected, "{inserted} {first} {second} {was_there}");
    }
}

/// The error of a move to compute server 1 that the giver refuses, if its map then has this owner.
fn refused_move(near: Option<u64>, owner: u16) -> String {
    let is_refused = AtomicBool::new(false);
    let giver = Puppet(Box::new(move |ask| match ask {
        Ask::Release { .. } => {
            is_refused.store(true, Ordering::Relaxed);
            Told::Error(ErrorCode::Malformed)
        }
        _ if is_refused.load(Ordering::Relaxed) => map(1 + u64::from(owner), owner),
        _ => map(1, 0),
    }));
    let taker = Puppet(Box::new(|ask| match ask {
        Ask::Map => map(1, 0),
        _ => Told::Error(ErrorCode::Contended),
    }));
    let moved = with_servers(vec![Arc::new(giver), Arc::new(taker)], async |client| {
        client.move_keys(0, 1, near.as_ref()).await
    });
    moved.unwrap_err().to_string()
}

/// The error of a refused move once always named a boundary outside the giver's range, even if the
/// boundary was inside but too long for the map.
#[test]
fn a_refused_move_names_the_possible_reasons() {
    let error = refused_move(Some(5), 0);
    assert!(error.contains("no boundary") && error.contains("too large"), "{error}");
    let error = refused_move(None, 0);
    assert!(!error.contains("no boundary") && error.contains("too large"), "{error}");
    let error = refused_move(Some(5), 1);
    assert!(error.contains("owns no keys"), "{error}");
}

/// A change with a reply of the wrong kind once ended as "nothing has changed".
#[test]
fn a_change_with_an_invalid_reply_is_of_unknown_outcome() {
    let ended = with_client(|_| Told::Done, async |client| client.insert(&1, &1).await);
    assert!(matches!(ended, Err(IndexError::Indeterminate(_))), "{ended:?}");
    let ended = with_client(|_| Told::Done, async |client| client.get(&1).await);
    assert!(matches!(ended, Err(IndexError::BadReply { .. })), "{ended:?}");
}

/// A compute server that answered a scan without records and with the same position kept the client
/// busy forever; one that returned more records than requested exceeded the caller's limit.
#[test]
fn a_scan_that_goes_nowhere_or_too_far_ends() {
    for reverse in [false, true] {
        let scan = ScanRequest { reverse, ..ScanRequest::range(7..=20).limit(3) };
        let again = |ask| match ask {
            Ask::Scan { lower, upper, reverse, .. } => {
                let next = Some(if reverse { upper } else { lower });
                Told::Records { records: Vec::new(), next }
            }
            other => unreachable!("{other:?}"),
        };
        let ended = with_client(again, async |client| client.scan(&scan).await);
        assert!(matches!(ended, Err(IndexError::BadReply { .. })), "{ended:?}");
        let records: Vec<_> = (7..11).map(|key| (key, key)).collect();
        let many = move |_| Told::Records { records: records.clone(), next: None };
        let ended = with_client(many, async |client| client.scan(&scan).await);
        assert!(matches!(ended, Err(IndexError::BadReply { .. })), "{ended:?}");
    }
}
