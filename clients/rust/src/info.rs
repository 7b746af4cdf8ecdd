//! What a reply to `RLOCK.INFO` reports about an owner.

use redis::Value;

/// The token of that owner's hold in that mode.
pub(crate) fn token_of(info: &Value, owner: &str, mode: &str) -> Option<i64> {
    let mode = mode.to_lowercase();
    let Value::Array(holders) = field(info, "holders")? else { return None };
    let mut own = holders.iter().filter(|holder| {
        is_text(field(holder, "owner"), owner) && is_text(field(holder, "mode"), &mode)
    });
    redis::from_redis_value_ref(field(own.next()?, "token")?).ok()
}

fn is_text(value: Option<&Value>, text: &str) -> bool {
    value.is_some_and(|value| {
        redis::from_redis_value_ref(value).is_ok_and(|said: String| said == text)
    })
}

fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = map.as_map_iter()?;
    let mut found = fields
        .filter(|(key, _)| redis::from_redis_value_ref(key).is_ok_and(|text: String| text == name));
    found.next().map(|(_, value)| value)
}
