//! The arguments of a command: parsed, or refused in one printable line.

use rlock_core::grammar::commands::COMMANDS;
use rlock_core::grammar::{Arguments, BadWord, Command, Limits, Positional, SeveralKeys, Word};
use rlock_core::{LeaseMs, Owner, Token};

/// The first byte selects the command, the second the limits; the rest is arguments separated by
/// spaces.
pub fn grammar(data: &[u8]) {
    let [command, limits, line @ ..] = data else { return };
    let command = &COMMANDS[usize::from(*command) % COMMANDS.len()];
    let limits =
        [limits_of(30_000, 604_800_000, 65_535), limits_of(500, 400, 3)][usize::from(*limits) % 2];
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let mut keys = SeveralKeys::default();
    match command.read_several(words.iter().copied(), &limits, &mut keys) {
        Ok(read) if command.has_several_keys() => {
            has_the_keys_that_it_names(&read, &keys, &words);
        }
        Ok(read) if command.has_leading_keys() => {
            let (payload, all) = words.split_last().expect("words");
            assert_eq!((read.payload, keys.keys.as_slice()), (*payload, all));
            assert!((1..=128).contains(&all.len()) && all.windows(2).all(|two| two[0] < two[1]));
        }
        Ok(read) => {
            is_within_bounds(command, &read, &words, &limits);
            says_the_same_in_any_order(command, &read, &words, &limits);
            is_what_the_words_say(command, &read, &words);
        }
        Err(bad) => is_one_printable_line(&bad, command),
    }
}

fn limits_of(default_ms: u64, max_ms: u64, max_depth: u16) -> Limits {
    let lease = |ms| LeaseMs::new(ms).expect("a lease");
    Limits { default_lease: lease(default_ms), max_lease: lease(max_ms), max_depth, acks: 0 }
}

/// There are as many keys as `numkeys` says, all different, and `wants` returns them in key order.
fn has_the_keys_that_it_names(read: &Arguments<'_>, keys: &SeveralKeys<'_>, words: &[&[u8]]) {
    let count = usize::try_from(decimal(words[0]).expect("a number")).expect("a small number");
    assert!((1..=128).contains(&count) && keys.keys == words[1..=count]);
    assert_eq!((read.key, read.owner), (words[1], words[count + 1]));
    let wants = keys.wants(read);
    assert!(wants.windows(2).all(|pair| pair[0].key < pair[1].key), "{wants:?}");
    assert!(wants.iter().all(|want| keys.keys[want.number] == want.key), "{wants:?}");
}

fn is_one_printable_line(bad: &BadWord, command: &Command) {
    let line = bad.line();
    assert!(line.starts_with("ERR "), "{line}");
    assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line:?}");
    // An argument is cut to 64 bytes, each of which takes at most four characters.
    let longest = 300 + 4 * 64 + command.usage().len();
    assert!(line.len() < longest, "{} bytes: {line}", line.len());
}

fn is_within_bounds(command: &Command, read: &Arguments<'_>, words: &[&[u8]], limits: &Limits) {
    assert!(words.len() >= command.positional.len());
    for (positional, word) in command.positional.iter().zip(words) {
        match positional {
            Positional::Key => assert_eq!(read.key, *word),
            Positional::Owner => assert_eq!(read.owner, *word),
            // Checked apart.
            Positional::NumKeys
            | Positional::Keys
            | Positional::LeadingKeys
            | Positional::Payload => {}
            Positional::Token => assert_eq!(read.token.map(Token::get), decimal(word)),
            Positional::TokenOrZero => {
                assert_eq!(Some(read.token.map_or(0, Token::get)), decimal(word));
            }
        }
    }
    if command.positional.contains(&Positional::Owner) {
        assert!((1..=Owner::MAX_BYTES).contains(&read.owner.len()));
    }
    let most = if read.session { limits.max_lease.get().max(1000) } else { limits.max_lease.get() };
    let least = if read.session { 1000 } else { 1 };
    assert!((least..=most).contains(&read.lease.get()), "lease {:?}", read.lease);
    assert!(read.depth.is_none_or(|depth| depth <= limits.max_depth));
    assert!(read.block_ms.is_none_or(|ms| ms <= 604_800_000));
    assert!(read.queue.is_none_or(|ms| ms.get() <= 60_000));
    assert!(read.count <= 1_000_000);
    assert!(read.block_ms.is_none() || read.queue.is_none(), "it waits in two ways");
    assert!(!read.all || read.depth.is_none(), "it goes down in two ways");
}

/// The options, each with its value.
fn groups<'a>(command: &Command, words: &[&'a [u8]]) -> Vec<Vec<&'a [u8]>> {
    let mut words = words[command.positional.len()..].iter().copied();
    let mut groups = Vec::new();
    while let Some(word) = words.next() {
        let is_it = |option: &&Word| option.word().as_bytes().eq_ignore_ascii_case(word);
        let option = command.options.iter().find(is_it).expect("it was read");
        let value = option.value().and_then(|_| words.next());
        groups.push([Some(word), value].into_iter().flatten().collect());
    }
    groups
}

fn says_the_same_in_any_order(
    command: &Command,
    read: &Arguments<'_>,
    words: &[&[u8]],
    limits: &Limits,
) {
    let (required, options) = words.split_at(command.positional.len());
    let shouted: Vec<Vec<u8>> = options.iter().map(|word| word.to_ascii_uppercase()).collect();
    let shouted: Vec<&[u8]> =
        required.iter().copied().chain(shouted.iter().map(Vec::as_slice)).collect();
    let mut backwards = groups(command, &shouted);
    backwards.reverse();
    let backwards = required.iter().copied().chain(backwards.into_iter().flatten());
    let again = command.read(backwards, limits).expect("the same options in another order");
    assert_eq!(format!("{read:?}"), format!("{again:?}"));
}

/// Nothing is lost and nothing is invented: each argument is found in the result, and everything
/// else has its default.
fn is_what_the_words_say(command: &Command, read: &Arguments<'_>, words: &[&[u8]]) {
    let groups = groups(command, words);
    let said = |name: &str| {
        let is_it = |group: &&Vec<&[u8]>| group[0].eq_ignore_ascii_case(name.as_bytes());
        groups.iter().find(is_it).map(|group| group.get(1).copied().unwrap_or_default())
    };
    let number = |name: &str| said(name).map(|word| decimal(word).expect("a number was read"));
    assert_eq!(
        read.mode.map(|mode| mode.word()),
        ["READ", "WRITE"].into_iter().find(|mode| said(mode).is_some())
    );
    assert_eq!(read.all, said("ALL").is_some());
    assert_eq!(read.upgrade, said("UPGRADE").is_some());
    assert_eq!(read.with_ttl, said("WITHTTL").is_some());
    assert_eq!(read.session, said("SESSION").is_some());
    assert_eq!(read.depth.map(u64::from), number("DEPTH"));
    assert_eq!(read.block_ms, number("BLOCK"));
    assert_eq!(read.queue.map(LeaseMs::get), number("QUEUE"));
    if let Some(ms) = number("LEASE") {
        assert_eq!(read.lease.get(), ms);
    }
    let names_token = [Positional::Token, Positional::TokenOrZero];
    if !command.positional.iter().any(|one| names_token.contains(one)) {
        assert_eq!(read.token.map(Token::get), number("TOKEN"));
    }
    if let Some(count) = number("COUNT").or(number("WAITERS")) {
        assert_eq!(Some(count), u64::try_from(read.count).ok());
    }
}

/// As the server reads numbers: only in their shortest decimal form.
fn decimal(word: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == word).then_some(number)
}
