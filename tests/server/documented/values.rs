//! Compares printed numbers with real ones. Tokens, connections and times differ in each run;
//! everything else is the same.

use std::collections::BTreeMap;

/// The real value of each printed one, for one session.
#[derive(Default)]
pub struct Values {
    tokens: BTreeMap<u64, u64>,
    connections: BTreeMap<u64, u64>,
}

impl Values {
    /// A line of the page with the tokens and connections of this run in it.
    pub fn real(&self, printed: &str) -> String {
        let parts = parts(printed).into_iter();
        let real = parts.map(|part| match part.parse::<u64>() {
            Ok(number) => {
                let real = self.tokens.get(&number).or_else(|| self.connections.get(&number));
                real.map_or_else(|| part.to_owned(), u64::to_string)
            }
            Err(_) => part.to_owned(),
        });
        real.collect()
    }

    /// Asserts that the reply is the printed one, except for tokens, times, and what an ellipsis at
    /// the end of a line stands for: words that differ between servers.
    #[track_caller]
    pub fn compare(&mut self, printed: &[&str], replied: &[String], context: &str) {
        assert_eq!(printed.len(), replied.len(), "{context}: {replied:#?}");
        for at in 0..printed.len() {
            // The name of a field is on the line before or, in a map, on the same line.
            let before = at.checked_sub(1).map_or("", |before| printed[before]);
            let before = printed[at].split_once(" => ").map_or(before, |(name, _)| name);
            let is_wait = context.contains("RLOCK.QUEUES") && printed[at].contains("3) ");
            if let Some(start) = printed[at].strip_suffix('…') {
                assert!(replied[at].starts_with(&self.real(start)), "{context}: {replied:#?}");
                continue;
            }
            let (left, right) = (parts(printed[at].trim_end()), parts(replied[at].trim_end()));
            assert_eq!(left.len(), right.len(), "{context}: {replied:#?}");
            for (left, right) in left.into_iter().zip(right) {
                let is_same = match (left.parse(), right.parse()) {
                    (Ok(left), Ok(right)) => is_wait || self.is_same(left, right, before),
                    _ => left == right,
                };
                assert!(is_same, "{context}: {left:?} is {right:?} in {replied:#?}");
            }
        }
        let tokens: Vec<u64> = self.tokens.values().copied().collect();
        assert!(tokens.is_sorted(), "{context}: tokens do not rise as printed");
    }

    fn is_same(&mut self, printed: u64, replied: u64, before: &str) -> bool {
        let is_time =
            before.ends_with("-ms\"") || before.ends_with("\"ms\"") || is_left_of_a_lease(printed);
        if is_token(printed) {
            is_token(replied) && *self.tokens.entry(printed).or_insert(replied) == replied
        } else if before.ends_with("\"session\"") || before.ends_with("\"client\"") {
            // The number of a connection, or 0 for none.
            *self.connections.entry(printed).or_insert(if printed == 0 { 0 } else { replied })
                == replied
        } else {
            printed == replied || (is_time && !is_token(replied))
        }
    }
}

/// Whether this can be the remaining time of 30 seconds.
fn is_left_of_a_lease(number: u64) -> bool {
    (20_001..=30_000).contains(&number)
}

fn is_token(number: u64) -> bool {
    number >= 1_000_000_000_000
}

/// Digits and the text between them, in turn.
fn parts(line: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let bytes = line.as_bytes();
    for at in 1..bytes.len() {
        if bytes[at].is_ascii_digit() != bytes[at - 1].is_ascii_digit() {
            parts.push(&line[start..at]);
            start = at;
        }
    }
    parts.push(&line[start..]);
    parts
}

#[test]
fn a_page_that_prints_something_else_is_noticed() {
    let differs = |printed: &[&'static str], replied: &[&str]| {
        let (printed, replied) = (printed.to_vec(), replied.to_vec());
        std::panic::catch_unwind(move || {
            let replied: Vec<String> = replied.iter().map(ToString::to_string).collect();
            Values::default().compare(&printed, &replied, "a page");
        })
        .is_err()
    };
    let (one, two) = ("(integer) 1795173499563301", "(integer) 1795173499563302");
    assert!(!differs(&[one, two], &["(integer) 1895173499563301", "(integer) 1895173499563302"]));
    assert!(differs(&[one, two], &["(integer) 1895173499563302", "(integer) 1895173499563301"]));
    assert!(differs(&[one, one], &["(integer) 1895173499563301", "(integer) 1895173499563302"]));
    assert!(differs(&[one], &["(integer) 1"]));
    assert!(differs(&["(integer) 1"], &["(integer) 2"]));
    assert!(differs(&["(nil)"], &[]));
    assert!(differs(&["(error) NOPERM …"], &["(error) NOPROTO x"]));
    assert!(!differs(&["(error) NOPERM …"], &["(error) NOPERM x"]));
    assert!(differs(&["\"ttl-ms\"", "(integer) 29990"], &["\"ttl-ms\"", "(integer) -1"]));
    assert!(!differs(&["\"ttl-ms\"", "(integer) 29990"], &["\"ttl-ms\"", "(integer) 7"]));
    assert!(!differs(&["5# \"ttl-ms\" => (integer) 1"], &["5# \"ttl-ms\" => (integer) 7"]));
    assert!(differs(&["3# \"depth\" => (integer) 1"], &["3# \"depth\" => (integer) 7"]));
    let client = |number| ["\"client\"", number, "\"client\"", number];
    assert!(!differs(&client("(integer) 1042"), &client("(integer) 7")));
    assert!(differs(&client("(integer) 0"), &client("(integer) 7")));
    assert!(differs(
        &client("(integer) 1042"),
        &["\"client\"", "(integer) 7", "\"client\"", "(integer) 8"]
    ));
}
