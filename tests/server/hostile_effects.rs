//! `RLOCK.APPLY` sent by hand: an effect as servers write it is accepted, anything else is refused
//! and changes nothing.

use fastrand::Rng;
use rlock_testkit::{Client, LockView, Server, aof_commands, now_ms, until};

type Words = Vec<Vec<u8>>;

/// A server that has written effects of every kind into its AOF, and those effects.
fn effects() -> (Server, Vec<Words>) {
    let server =
        Server::with(&["appendonly", "yes", "appendfsync", "always", "aof-use-rdb-preamble", "no"]);
    let mut client = server.client();
    for line in [
        "RLOCK.ACQUIRE door ann READ LEASE 600000",
        "RLOCK.ACQUIRE door bob READ LEASE 600000",
        "RLOCK.ACQUIRE door bob READ LEASE 700000",
        "RLOCK.RENEW door ann LEASE 800000",
        "RLOCK.RELEASE door bob",
        "RLOCK.RELEASE door bob",
        "RLOCK.ACQUIRE door ann UPGRADE LEASE 600000",
        "RLOCK.RELEASE door ann",
        "RLOCK.ACQUIRE door cid READ LEASE 600000",
        "RLOCK.FORCE door",
        "RLOCK.ACQUIRE door dan LEASE 600000",
        "RLOCK.FORCE door WRITE",
    ] {
        client.ask(line);
    }
    let commands = aof_commands(server.folder()).into_iter();
    let is_effect = |words: &Words| words[0].eq_ignore_ascii_case(b"RLOCK.APPLY");
    let effects: Vec<Words> = commands.filter(is_effect).collect();
    assert!(effects.len() >= 9, "{} effects", effects.len());
    assert!(effects.iter().all(|words| words[1] == b"door"));
    (server, effects)
}

#[track_caller]
fn send(client: &mut Client, words: &[Vec<u8>]) -> Result<redis::Value, String> {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    client.attempt_bytes(&words)
}

/// Sends a changed effect at a key that holds a lock. If it is refused, nothing has changed; if it
/// is accepted, there is a lock that can exist, or nothing.
#[track_caller]
fn try_to_apply(client: &mut Client, words: &[Vec<u8>], what: &str) -> bool {
    let before = (client.dump("door"), client.key_ends_at("door"));
    match send(client, words) {
        Err(error) => {
            assert!(error.starts_with("ERR "), "{what}: {error}");
            let after = (client.dump("door"), client.key_ends_at("door"));
            assert_eq!(after, before, "{what}");
            false
        }
        Ok(_) => {
            LockView::read(&client.ask("RLOCK.INFO door"));
            client.attempt("RLOCK.RENEW door ann LEASE 700000").ok();
            client.attempt("RLOCK.RELEASE door ann").ok();
            LockView::read(&client.ask("RLOCK.INFO door"));
            set_up(client);
            true
        }
    }
}

/// Creates two readers with everything that an effect may name.
#[track_caller]
fn set_up(client: &mut Client) {
    client.ask("DEL door");
    client.granted("RLOCK.ACQUIRE door ann READ LEASE 600000");
    client.granted("RLOCK.ACQUIRE door bob READ LEASE 600000");
}

#[test]
fn an_effect_with_any_one_byte_changed_is_refused_or_leaves_a_sound_lock() {
    let (_written_by, effects) = effects();
    let server = Server::start();
    let mut client = server.client();
    set_up(&mut client);
    let mut refused_count = 0;
    for (number, effect) in effects.iter().enumerate() {
        for word in 2..effect.len() {
            for at in 0..effect[word].len() {
                let old = effect[word][at];
                let bits = (0..8).map(|bit| old ^ (1 << bit));
                for new in bits.chain([0, 0xff, 0x7f, 0x80]).filter(|new| *new != old) {
                    let mut changed = effect.clone();
                    changed[word][at] = new;
                    let what = format!("effect {number} word {word} byte {at}: {new:#04x}");
                    let is_taken = try_to_apply(&mut client, &changed, &what);
                    refused_count += usize::from(!is_taken);
                }
            }
        }
    }
    assert!(refused_count > 100, "only {refused_count} were refused");
}

#[test]
fn an_effect_cut_short_or_with_bytes_or_words_added_is_refused_or_sound() {
    let (_written_by, effects) = effects();
    let server = Server::start();
    let mut client = server.client();
    set_up(&mut client);
    for effect in &effects {
        for word in 2..effect.len() {
            for at in 0..effect[word].len() {
                let mut cut = effect.clone();
                cut[word].truncate(at);
                try_to_apply(&mut client, &cut, &format!("cut at {at}"));
                let mut longer = effect.clone();
                longer[word].insert(at, 0x80);
                try_to_apply(&mut client, &longer, &format!("a byte added at {at}"));
            }
            let mut twice = effect.clone();
            twice.insert(word, effect[word].clone());
            try_to_apply(&mut client, &twice, "a word twice");
            let mut without = effect.clone();
            without.remove(word);
            if without.len() > 2 {
                try_to_apply(&mut client, &without, "a word left out");
            }
        }
    }
}

/// Of effects at several locks, all are accepted, or none.
#[test]
fn effects_at_two_locks_with_any_one_byte_changed_are_both_refused_or_both_sound() {
    let written_by = Server::with(&["appendonly", "yes", "appendfsync", "always"]);
    let mut client = written_by.client();
    for line in [
        "RLOCK.MACQUIRE 2 door gate ann READ LEASE 600000",
        "RLOCK.MACQUIRE 2 door gate bob READ LEASE 600000",
        "RLOCK.MRENEW 2 door gate ann LEASE 700000",
        "RLOCK.MRELEASE 2 door gate bob",
    ] {
        client.ask(line);
    }
    let commands = aof_commands(written_by.folder()).into_iter();
    let effects: Vec<Words> = commands.filter(|words| words.len() == 4).collect();
    assert_eq!(effects.len(), 4);
    let server = Server::start();
    let mut client = server.client();
    let keys = ["door", "gate"];
    let begin = |client: &mut Client| {
        client.ask("DEL door gate");
        client.granted("RLOCK.MACQUIRE 2 door gate ann READ LEASE 600000");
        client.granted("RLOCK.MACQUIRE 2 door gate bob READ LEASE 600000");
    };
    begin(&mut client);
    let (mut taken, mut refused) = (0, 0);
    for (number, effect) in effects.iter().enumerate() {
        for at in 0..effect[3].len() {
            for new in [0, 1, 2, 0x7f, 0x80, 0xff].map(|bits| effect[3][at] ^ bits) {
                let mut changed = effect.clone();
                changed[3][at] = new;
                let before = keys.map(|key| (client.dump(key), client.key_ends_at(key)));
                if send(&mut client, &changed).is_err() {
                    let after = keys.map(|key| (client.dump(key), client.key_ends_at(key)));
                    assert_eq!(after, before, "effect {number} byte {at}: {new:#04x}");
                    refused += 1;
                    continue;
                }
                for key in keys {
                    LockView::read(&client.ask(&format!("RLOCK.INFO {key}")));
                }
                begin(&mut client);
                taken += 1;
            }
        }
    }
    assert!(refused > 100 && taken > 100, "{refused} refused, {taken} taken");
}

#[test]
fn noise_is_refused_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    set_up(&mut client);
    let mut rng = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    for round in 0..5_000 {
        let mut words = vec![b"RLOCK.APPLY".to_vec(), b"door".to_vec()];
        for _ in 0..=rng.usize(..3) {
            let length = rng.usize(..60);
            words.push((0..length).map(|_| rng.u8(..)).collect());
        }
        try_to_apply(&mut client, &words, &format!("round {round}: {words:?}"));
    }
    assert_eq!(client.shows("door"), "read: ann read 1, bob read 1");
}

#[test]
fn refused_effects_at_no_key_and_at_another_type_create_and_change_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.ask("SET value 1");
    for payload in ["x", "\0", "WRITE ann 1 2 3"] {
        for key in ["nowhere", "value"] {
            let words: [&[u8]; 3] = [b"RLOCK.APPLY", key.as_bytes(), payload.as_bytes()];
            client.error_bytes(&words);
        }
    }
    assert_eq!(client.number("EXISTS nowhere"), 0);
    assert_eq!(client.text("GET value"), "1");
}

#[test]
fn a_tampered_effect_at_another_type_leaves_it_or_makes_a_sound_lock() {
    let (_written_by, effects) = effects();
    let server = Server::start();
    let mut client = server.client();
    for effect in &effects {
        for at in 0..effect[2].len() {
            for new in [0, 1, 2, 0x7f, 0x80, 0xff] {
                client.ask("SET door value");
                let mut changed = effect.clone();
                changed[2][at] = new;
                let is_taken = send(&mut client, &changed).is_ok();
                match client.text("TYPE door").as_str() {
                    "string" => assert_eq!(client.text("GET door"), "value"),
                    // It began with a deadline in the past, so it has ended at once.
                    "rlock-key" | "none" => assert!(is_taken),
                    other => panic!("{other} after byte {at} became {new:#04x}"),
                }
            }
        }
    }
}

#[test]
fn effects_sent_twice_or_out_of_order_leave_sound_locks() {
    let (_written_by, effects) = effects();
    let server = Server::start();
    let mut client = server.client();
    let mut rng = Rng::with_seed(0x2545_f491_4f6c_dd1d);
    for _ in 0..300 {
        let effect = &effects[rng.usize(..effects.len())];
        send(&mut client, effect).ok();
        LockView::read(&client.ask("RLOCK.INFO door"));
        client.ask("DEBUG RELOAD");
        LockView::read(&client.ask("RLOCK.INFO door"));
    }
    client.ask("DEL door");
    client.granted("RLOCK.ACQUIRE door ann");
}

/// The line that renews a hold may come long after the one that began it, whose deadline has
/// passed.
#[test]
fn an_append_only_file_that_a_client_sends_keeps_the_holds_that_were_renewed() {
    let server = Server::with(&["appendonly", "yes"]);
    let mut client = server.client();
    client.all(&["RLOCK.ACQUIRE door ann LEASE 300", "RLOCK.RENEW door ann LEASE 600000"]);
    let began_ms = now_ms();
    until(5_000, || now_ms() > began_ms + 300);
    let other = Server::start();
    let mut to = other.client();
    for words in aof_commands(server.folder()) {
        to.ask_bytes(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        // Another client may look at the key in between.
        to.number("EXISTS door");
    }
    assert_eq!(to.dump("door"), client.dump("door"));
    assert_eq!(to.key_ends_at("door"), client.key_ends_at("door"));
}
