//! Requests byte by byte: no other byte counts as a digit, or as a letter of an option.

use rlock_core::grammar::commands::{ACQUIRE, AWAIT};
use rlock_core::grammar::{Arguments, Command, Limits};
use rlock_core::text::quoted;
use rlock_core::{LeaseMs, Token};

fn read_words<'a>(command: &Command, words: &[&'a [u8]]) -> Result<Arguments<'a>, String> {
    let (default_lease, max_lease) = (LeaseMs::new(30_000).unwrap(), LeaseMs::MAX);
    let limits = Limits { default_lease, max_lease, max_depth: u16::MAX, acks: 0 };
    command.read(words.iter().copied(), &limits).map_err(|bad| bad.line().into())
}

#[test]
fn a_number_of_any_length_has_digits_only() {
    let digits = b"1203948576190284";
    for len in 1..=digits.len() {
        let (number, rest) = digits.split_at(len);
        assert_eq!(rest.len(), digits.len() - len);
        let text = str::from_utf8(number).unwrap();
        let asked = read_words(&AWAIT, &[b"k", number]).unwrap();
        assert_eq!(asked.token.map(Token::get), text.parse().ok(), "{text}");
        for (place, other) in (0..len).flat_map(|place| (0..=u8::MAX).map(move |o| (place, o))) {
            let mut changed = number.to_vec();
            changed[place] = other;
            let read = read_words(&AWAIT, &[b"k", &changed]);
            let has_leading_zero = len > 1 && changed[0] == b'0';
            let number = str::from_utf8(&changed).ok().filter(|_| other.is_ascii_digit());
            let number = number.and_then(|text| text.parse::<u64>().ok());
            let expected = number.filter(|n| !has_leading_zero && *n <= Token::MAX);
            let read = read.map(|asked| asked.token.map_or(0, Token::get));
            assert_eq!(read.ok(), expected, "{:?}", quoted(&changed));
        }
    }
}

#[test]
fn no_other_byte_makes_a_word_of_an_option() {
    for (option, value) in
        [("READ", None), ("LEASE", Some("5")), ("UPGRADE", None), ("ACKS", Some("1"))]
    {
        for (place, other) in
            (0..option.len()).flat_map(|place| (0..=u8::MAX).map(move |other| (place, other)))
        {
            let mut word = option.as_bytes().to_vec();
            word[place] = other;
            let words: Vec<&[u8]> =
                [b"k", b"a", &*word].into_iter().chain(value.map(str::as_bytes)).collect();
            let is_it = word.eq_ignore_ascii_case(option.as_bytes());
            assert_eq!(read_words(&ACQUIRE, &words).is_ok(), is_it, "{:?}", quoted(&word));
        }
        for len in 1..option.len() {
            let words: Vec<&[u8]> = vec![b"k", b"a", &option.as_bytes()[..len]];
            assert!(read_words(&ACQUIRE, &words).is_err(), "{option} is cut to {len}");
        }
    }
}
