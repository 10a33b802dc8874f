//! Checks of RPCs.

use super::{LateService, NOT_A_REQUEST, TestService, at, read, start, word_of};
use crate::{
    Cluster, Fabric, FabricError, MAX_MESSAGE_BYTES, Message, Provider, ServerId, Uncertainty,
};

const SERVER: ServerId = ServerId::new(0);

/// Each request gets its reply, whatever its length or content.
pub fn replies_match_requests<P: Provider>(provider: &P) {
    let cluster = start(provider, 2);
    super::alone(&cluster, |fabric| async move {
        for bytes in [0, 1, 63, 64, 1000, MAX_MESSAGE_BYTES - 1] {
            let body: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
            let reply = fabric.call(SERVER, TestService::echo(&body)).await.unwrap();
            assert_eq!(&reply[..], &body[..], "an echo of {bytes} bytes");
        }
        let one = ServerId::new(1);
        assert_eq!(word_of(&fabric.call(one, TestService::add_word(8, 5)).await.unwrap()), 0);
        assert_eq!(word_of(&fabric.call(one, TestService::read_word(8)).await.unwrap()), 5);
        assert_eq!(read(&fabric, at(1, 8), 1).await.unwrap(), [5], "a READ sees the server's work");
        assert_eq!(word_of(&fabric.call(one, TestService::work(20)).await.unwrap()), 20);
        for garbage in [&[][..], &[0], &[2, 1, 2, 3], &[3; 64], &[255; 300]] {
            let reply = fabric.call(SERVER, Message::from_slice(garbage)).await.unwrap();
            assert_eq!(&reply[..], NOT_A_REQUEST, "{garbage:?}");
        }
        let outside = fabric.call(SERVER, TestService::read_word(u64::MAX - 7)).await.unwrap();
        assert_eq!(&outside[..], NOT_A_REQUEST);
        let unknown = ServerId::new(2);
        let refused = fabric.call(unknown, TestService::echo(b"?")).await.unwrap_err();
        assert_eq!(refused, FabricError::NoSuchServer(unknown));
    });
}

/// Concurrent calls of several endpoints, with several in flight each: none is lost, mixed up or
/// executed twice.
pub fn concurrent_calls_are_answered<P: Provider>(provider: &P) {
    let cluster = start(provider, 1);
    let rounds = 8;
    cluster.run(&[0, 0, 1, 2], |fabric, client| async move {
        for round in 0..rounds {
            let text = [client as u8, round as u8];
            let add = fabric.call(SERVER, TestService::add_word(256, 1));
            let work = fabric.call(SERVER, TestService::work(3 + round));
            let echo = fabric.call(SERVER, TestService::echo(&text));
            assert_eq!(&echo.await.unwrap()[..], text);
            assert!(word_of(&add.await.unwrap()) < 4 * rounds);
            assert_eq!(word_of(&work.await.unwrap()), 3 + round);
        }
    });
    super::alone(&cluster, |fabric| async move {
        assert_eq!(read(&fabric, at(0, 256), 1).await.unwrap(), [4 * rounds]);
    });
}

/// Requests and replies that are too large are errors, and the endpoint still works.
pub fn messages_are_bounded<P: Provider>(provider: &P) {
    let cluster = start(provider, 1);
    super::alone(&cluster, |fabric| async move {
        let bytes = MAX_MESSAGE_BYTES + 1;
        let request = TestService::echo(&vec![1; bytes - 1]);
        let refused = fabric.call(SERVER, request).await.unwrap_err();
        assert_eq!(refused, FabricError::MessageTooLarge { bytes });
        let refused = fabric.call(SERVER, TestService::reply_of(bytes as u64)).await.unwrap_err();
        assert_eq!(refused, FabricError::MessageTooLarge { bytes });
        let largest = TestService::reply_of(MAX_MESSAGE_BYTES as u64);
        assert_eq!(fabric.call(SERVER, largest).await.unwrap().len(), MAX_MESSAGE_BYTES);
        let counted = fabric.counters().snapshot();
        let requests = (MAX_MESSAGE_BYTES + 1 + 9 + 9) as u64;
        let replies = MAX_MESSAGE_BYTES as u64;
        assert_eq!(counted.rpc_bytes, requests + replies, "a refused reply brings no bytes");
    });
}

/// A server may answer later, or never. `cluster` has one server, a [`LateService`].
///
/// # Panics
/// If the provider does not support this.
pub fn answers_may_come_later<C: Cluster>(cluster: &C) {
    super::alone(cluster, |fabric| async move {
        // Calls may overtake each other, so repeat the request until the server has handled as
        // many kept calls.
        let told = async |request: fn() -> Message, kept: u64| {
            let mut told = 0;
            while told < kept {
                told += word_of(&fabric.call(SERVER, request()).await.unwrap());
                fabric.sleep(1_000).await;
            }
        };
        for bytes in [0, 10, 1000, MAX_MESSAGE_BYTES - 1] {
            let answers = [vec![1; bytes], vec![2; bytes]];
            let calls = answers.each_ref().map(|it| fabric.call(SERVER, LateService::keep(it)));
            let calls = calls.map(Box::pin);
            told(LateService::answer, 2).await;
            for (call, answer) in calls.into_iter().zip(&answers) {
                assert_eq!(&call.await.unwrap()[..], &answer[..], "an answer of {bytes} bytes");
            }
        }
        let call = Box::pin(fabric.call(SERVER, LateService::keep(b"?")));
        told(LateService::forget, 1).await;
        let why = Uncertainty::ConnectionLost;
        let unknown = FabricError::Indeterminate { server: SERVER, why };
        assert_eq!(call.await, Err(unknown), "there is no answer");
        assert_eq!(fabric.counters().snapshot().indeterminate, 1);
        let outside = FabricError::OutOfBounds { at: at(0, 0), bytes: 8, region_bytes: 0 };
        assert_eq!(fabric.fetch_add(at(0, 0), 1).await, Err(outside), "it lends no memory");
    });
}
