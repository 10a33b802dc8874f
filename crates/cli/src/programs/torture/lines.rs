//! Histories as JSON, one object per operation and line, for other checkers. `docs/torture.md` has
//! the fields.
//!
//! *Thread safety*: plain functions.

use anyhow::Context;
use farleaf_history::{ClientAction, ClientOperation, History, OperationOutcome};
use farleaf_index::Exchange;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, Write};
use std::ops::Bound;

/// Writes all operations, if there is somewhere to write them to.
pub(super) fn write(history: &History, to: Option<Box<dyn Write>>) -> anyhow::Result<()> {
    let Some(to) = to else { return Ok(()) };
    let mut to = BufWriter::new(to);
    for operation in &history.operations {
        writeln!(to, "{}", line(operation)).context("cannot write the history")?;
    }
    to.flush().context("cannot write the history")
}

/// Keys and values are strings: readers of JSON lose digits of numbers beyond 2^53.
fn text(number: u64) -> Value {
    Value::String(number.to_string())
}

fn optional(number: Option<u64>) -> Value {
    number.map_or(Value::Null, text)
}

/// A bound that belongs to the range.
fn bound(bound: Bound<u64>, inner: impl Fn(u64) -> u64) -> Value {
    match bound {
        Bound::Unbounded => Value::Null,
        Bound::Included(key) => text(key),
        Bound::Excluded(key) => text(inner(key)),
    }
}

/// The operation, and its fields.
fn action(action: &ClientAction) -> (&'static str, Value) {
    let key_value = |key: &u64, value: &u64| json!({ "key": text(*key), "value": text(*value) });
    match action {
        ClientAction::Get(key) => ("get", json!({ "key": text(*key) })),
        ClientAction::Remove(key) => ("remove", json!({ "key": text(*key) })),
        ClientAction::Insert(key, value) => ("insert", key_value(key, value)),
        ClientAction::Update(key, value) => ("update", key_value(key, value)),
        ClientAction::Upsert(key, value) => ("upsert", key_value(key, value)),
        ClientAction::CompareExchange { key, expected, new } => {
            let (key, expected, new) = (text(*key), text(*expected), text(*new));
            ("compare-exchange", json!({ "key": key, "expected": expected, "value": new }))
        }
        ClientAction::Scan(scan) => {
            let lower = bound(scan.lower, |key| key.saturating_add(1));
            let upper = bound(scan.upper, |key| key.saturating_sub(1));
            let (reverse, limit) = (scan.reverse, scan.limit);
            let range =
                json!({ "lower": lower, "upper": upper, "reverse": reverse, "limit": limit });
            ("scan", range)
        }
        ClientAction::MultiGet(_) => ("multi-get", json!({})),
        ClientAction::Collect => ("collect", json!({})),
        ClientAction::Flush => ("flush", json!({})),
    }
}

fn answer(outcome: &OperationOutcome) -> Value {
    match outcome {
        OperationOutcome::Value(found) => json!({ "found": optional(*found) }),
        OperationOutcome::Applied(applied) => json!({ "applied": applied }),
        OperationOutcome::Done => json!({ "applied": true }),
        OperationOutcome::Exchange(Exchange::Exchanged) => json!({ "applied": true }),
        OperationOutcome::Exchange(Exchange::Differs(found)) => {
            json!({ "applied": false, "found": optional(*found) })
        }
        OperationOutcome::Records(records) => {
            let records = records.iter().map(|(key, value)| json!([text(*key), text(*value)]));
            json!({ "records": records.collect::<Vec<_>>() })
        }
        OperationOutcome::Indeterminate(error) | OperationOutcome::Failed(error) => {
            json!({ "error": error })
        }
        OperationOutcome::NoReturn | OperationOutcome::Values(_) => json!({}),
    }
}

/// An operation as an object.
fn line(operation: &ClientOperation) -> Value {
    let (name, fields) = action(&operation.action);
    let returned = operation.returned.filter(|_| !operation.outcome.is_uncertain());
    let mut line = Map::new();
    line.insert("client".to_owned(), operation.client.into());
    line.insert("op".to_owned(), name.into());
    for object in [fields, answer(&operation.outcome)] {
        if let Value::Object(fields) = object {
            line.extend(fields);
        }
    }
    line.insert("call".to_owned(), operation.invoked.order.into());
    line.insert("return".to_owned(), returned.map_or(Value::Null, |at| at.order.into()));
    line.insert("call_ns".to_owned(), operation.invoked.at_ns.into());
    line.insert("return_ns".to_owned(), returned.map_or(Value::Null, |at| at.at_ns.into()));
    Value::Object(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_history::HistoryMoment;
    use farleaf_index::ScanRequest;

    fn written(action: ClientAction, outcome: OperationOutcome) -> Value {
        let moment = |order: u64| HistoryMoment { order, at_ns: order * 1000 };
        let (invoked, returned) = (moment(3), Some(moment(5)));
        line(&ClientOperation { client: 2, action, invoked, returned, outcome })
    }

    #[test]
    fn every_operation_has_its_fields() {
        let moments = json!({
            "client": 2, "call": 3, "return": 5, "call_ns": 3000, "return_ns": 5000
        });
        let most = u64::MAX.to_string();
        let exchange = ClientAction::CompareExchange { key: 1, expected: 2, new: 3 };
        let scan = ScanRequest::range(1..9).limit(4).reverse();
        for (action, outcome, expected) in [
            (
                ClientAction::Get(u64::MAX),
                OperationOutcome::Value(Some(7)),
                json!({ "op": "get", "key": most, "found": "7" }),
            ),
            (
                ClientAction::Get(1),
                OperationOutcome::Value(None),
                json!({ "op": "get", "key": "1", "found": null }),
            ),
            (
                ClientAction::Upsert(1, 2),
                OperationOutcome::Done,
                json!({ "op": "upsert", "key": "1", "value": "2", "applied": true }),
            ),
            (
                ClientAction::Remove(1),
                OperationOutcome::Applied(false),
                json!({ "op": "remove", "key": "1", "applied": false }),
            ),
            (
                exchange.clone(),
                OperationOutcome::Exchange(Exchange::Exchanged),
                json!({
                    "op": "compare-exchange", "key": "1", "expected": "2", "value": "3", "applied": true
                }),
            ),
            (
                exchange,
                OperationOutcome::Exchange(Exchange::Differs(Some(9))),
                json!({
                    "op": "compare-exchange", "key": "1", "expected": "2", "value": "3",
                    "applied": false, "found": "9"
                }),
            ),
            (
                ClientAction::Scan(scan),
                OperationOutcome::Records(vec![(8, 80), (2, 20)]),
                json!({
                    "op": "scan", "lower": "1", "upper": "8", "reverse": true, "limit": 4,
                    "records": [["8", "80"], ["2", "20"]]
                }),
            ),
        ] {
            let mut expected = expected;
            expected.as_object_mut().unwrap().extend(moments.as_object().unwrap().clone());
            assert_eq!(written(action, outcome), expected);
        }
    }

    #[test]
    fn what_is_unknown_has_no_return() {
        let unknown = OperationOutcome::Indeterminate("no answer".to_owned());
        let line = written(ClientAction::Insert(1, 2), unknown);
        assert_eq!((&line["return"], &line["return_ns"]), (&Value::Null, &Value::Null));
        assert_eq!(line["error"], "no answer");
        assert_eq!(line.get("applied"), None);
    }
}
