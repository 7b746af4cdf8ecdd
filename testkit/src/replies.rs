//! Parses replies of servers.

use std::collections::BTreeMap;

use redis::Value;

/// A text reply, simple or bulk.
#[track_caller]
pub fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Okay => "OK".to_owned(),
        other => panic!("{other:?} is not text"),
    }
}

/// An integer reply.
#[track_caller]
pub fn integer(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => panic!("{other:?} is not an integer"),
    }
}

/// The reply to `TIME`, in unix milliseconds.
#[track_caller]
pub fn time_ms(value: &Value) -> i64 {
    time_us(value) / 1_000
}

/// The reply of `TIME`, in unix microseconds.
#[track_caller]
pub fn time_us(value: &Value) -> i64 {
    let parts = items(value).iter().map(|part| text(part).parse::<i64>().unwrap());
    let [seconds, micros] = parts.collect::<Vec<_>>()[..] else { panic!("{value:?} is no time") };
    seconds * 1_000_000 + micros
}

/// The elements of an array or a set.
#[track_caller]
pub fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        other => panic!("{other:?} is not an array"),
    }
}

/// A map by its names: RESP3 has maps, in RESP2 it is name, value, name, value.
#[track_caller]
pub fn flat_map(value: &Value) -> BTreeMap<String, Value> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(k, v)| (text(k), v.clone())).collect(),
        Value::Array(flat) => {
            assert!(flat.len().is_multiple_of(2), "{value:?} is not a map");
            let pairs = flat.chunks(2);
            pairs.map(|kv| (text(&kv[0]), kv[1].clone())).collect()
        }
        other => panic!("{other:?} is not a map"),
    }
}
