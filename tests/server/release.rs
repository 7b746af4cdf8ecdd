//! `RLOCK.RELEASE`: one level, several, or all; and what its caller may not release.

use rlock_testkit::{Client, Server, until};

/// A client whose `door` ann holds for WRITE at `depth`.
fn ann_holds(server: &Server, depth: usize) -> (Client, i64) {
    let mut client = server.client();
    let mut token = 0;
    for _ in 0..depth {
        token = client.granted("RLOCK.ACQUIRE door ann LEASE 60000");
    }
    (client, token)
}

#[test]
fn each_release_lets_go_of_one_level_and_the_last_one_of_the_lock() {
    let server = Server::start();
    let (mut client, _) = ann_holds(&server, 3);
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 2);
    assert_eq!(client.shows("door"), "write: ann write 2");
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 1);
    client.refused("RLOCK.ACQUIRE door bob");
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
    assert_eq!(client.number("EXISTS door"), 0);
    client.granted("RLOCK.ACQUIRE door bob");
}

#[test]
fn an_inner_release_leaves_token_and_deadline() {
    let server = Server::start();
    let (mut client, token) = ann_holds(&server, 2);
    let key_ends_at = client.key_ends_at("door");
    client.ask("RLOCK.RELEASE door ann");
    assert_eq!(client.key_ends_at("door"), key_ends_at);
    assert_eq!(client.lock("door").hold("ann", "write").token, token);
}

#[test]
fn all_lets_go_of_every_level_of_that_mode() {
    let server = Server::start();
    let (mut client, _) = ann_holds(&server, 3);
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE door ann READ");
    assert_eq!(client.number("RLOCK.RELEASE door ann ALL"), 0);
    assert_eq!(client.shows("door"), "read: ann read 2");
    assert_eq!(client.number("rlock.release door ann all read"), 0);
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn a_release_down_to_a_depth_may_be_sent_again() {
    let server = Server::start();
    let (mut client, _) = ann_holds(&server, 5);
    for _ in 0..2 {
        assert_eq!(client.number("RLOCK.RELEASE door ann DEPTH 2"), 2);
        assert_eq!(client.shows("door"), "write: ann write 2");
    }
    assert_eq!(client.number("RLOCK.RELEASE door ann DEPTH 4"), 2);
    assert_eq!(client.shows("door"), "write: ann write 2");
    for _ in 0..2 {
        assert_eq!(client.number("RLOCK.RELEASE door ann DEPTH 0"), 0);
        assert_eq!(client.number("EXISTS door"), 0);
    }
}

#[test]
fn a_release_to_a_depth_by_who_holds_nothing_is_zero_unless_it_names_a_token() {
    let server = Server::start();
    let (mut client, token) = ann_holds(&server, 2);
    assert_eq!(client.number("RLOCK.RELEASE door bob DEPTH 0"), 0);
    assert_eq!(client.number("RLOCK.RELEASE nowhere bob DEPTH 3"), 0);
    let line = format!("RLOCK.RELEASE door bob TOKEN {token} DEPTH 0");
    assert!(client.error(&line).starts_with("NOTHELD "));
    let line = format!("RLOCK.RELEASE nowhere bob TOKEN {token} DEPTH 0");
    assert!(client.error(&line).starts_with("NOTHELD "));
    assert_eq!(client.shows("door"), "write: ann write 2");
}

#[test]
fn a_depth_and_all_exclude_each_other() {
    let server = Server::start();
    let (mut client, _) = ann_holds(&server, 2);
    for options in ["ALL DEPTH 0", "DEPTH 0 ALL", "ALL ALL", "DEPTH 1 DEPTH 1"] {
        let error = client.error(&format!("RLOCK.RELEASE door ann {options}"));
        assert!(error.starts_with("ERR "), "{error}");
    }
    for options in ["READ WRITE", "TOKEN 5 TOKEN 5", "LEASE 5", "WITHTTL"] {
        let error = client.error(&format!("RLOCK.RELEASE door ann {options}"));
        assert!(error.starts_with("ERR "), "{error}");
    }
    assert_eq!(client.shows("door"), "write: ann write 2");
}

#[test]
fn only_the_right_token_releases() {
    let server = Server::start();
    let (mut client, token) = ann_holds(&server, 2);
    let before = client.dump("door");
    for wrong in [1, token - 1, token + 1] {
        for rest in ["", " ALL", " DEPTH 0", " WRITE"] {
            let line = format!("RLOCK.RELEASE door ann TOKEN {wrong}{rest}");
            assert!(client.error(&line).starts_with("NOTHELD "), "{line}");
        }
    }
    let stolen = format!("RLOCK.RELEASE door bob TOKEN {token}");
    assert!(client.error(&stolen).starts_with("NOTHELD "));
    assert_eq!(client.dump("door"), before);
    let line = format!("RLOCK.RELEASE door ann TOKEN {token}");
    assert_eq!(client.number(&line), 1);
    assert_eq!(client.number(&format!("{line} ALL")), 0);
    assert_eq!(client.number("EXISTS door"), 0);
}

#[test]
fn a_token_picks_the_hold_and_must_fit_the_mode_if_one_is_named() {
    let server = Server::start();
    let (mut client, write) = ann_holds(&server, 1);
    let read = client.granted("RLOCK.ACQUIRE door ann READ");
    assert_ne!(read, write);
    let line = format!("RLOCK.RELEASE door ann READ TOKEN {write}");
    assert!(client.error(&line).starts_with("NOTHELD "));
    let line = format!("RLOCK.RELEASE door ann WRITE TOKEN {read}");
    assert!(client.error(&line).starts_with("NOTHELD "));
    assert_eq!(client.shows("door"), "write: ann write 1, ann read 1");
    assert_eq!(client.number(&format!("RLOCK.RELEASE door ann TOKEN {read}")), 0);
    assert_eq!(client.shows("door"), "write: ann write 1");
}

#[test]
fn without_a_mode_write_is_released_before_read() {
    let server = Server::start();
    let (mut client, _) = ann_holds(&server, 2);
    client.granted("RLOCK.ACQUIRE door ann READ");
    client.granted("RLOCK.ACQUIRE door ann READ");
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 1);
    assert_eq!(client.shows("door"), "write: ann write 1, ann read 2");
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 0);
    assert_eq!(client.shows("door"), "read: ann read 2");
    assert_eq!(client.number("RLOCK.RELEASE door ann"), 1);
    assert_eq!(client.shows("door"), "read: ann read 1");
}

#[test]
fn a_named_mode_is_the_only_one_released() {
    let server = Server::start();
    let (mut client, _) = ann_holds(&server, 1);
    client.granted("RLOCK.ACQUIRE door ann READ");
    assert_eq!(client.number("RLOCK.RELEASE door ann READ"), 0);
    assert_eq!(client.shows("door"), "write: ann write 1");
    let error = client.error("RLOCK.RELEASE door ann READ");
    assert!(error.starts_with("NOTHELD "), "{error}");
    assert_eq!(client.shows("door"), "write: ann write 1");
    assert_eq!(client.number("RLOCK.RELEASE door ann WRITE"), 0);
}

#[test]
fn who_does_not_hold_changes_nothing_and_reads_who_does() {
    let server = Server::start();
    let (mut client, _) = ann_holds(&server, 2);
    let before = client.dump("door");
    let key_ends_at = client.key_ends_at("door");
    let error = client.error("RLOCK.RELEASE door bob");
    assert!(error.starts_with("NOTHELD ") && error.contains("bob"), "{error}");
    assert!(client.error("RLOCK.RELEASE door bob ALL").starts_with("NOTHELD "));
    assert_eq!(client.dump("door"), before);
    assert_eq!(client.key_ends_at("door"), key_ends_at);
    let error = client.error("RLOCK.RELEASE nowhere bob");
    assert!(error.starts_with("NOTHELD ") && error.contains("bob"), "{error}");
    assert_eq!(client.number("EXISTS nowhere"), 0);
}

#[test]
fn what_was_released_or_has_run_out_is_not_held() {
    let server = Server::start();
    let (mut client, token) = ann_holds(&server, 1);
    client.ask("RLOCK.RELEASE door ann");
    assert!(client.error("RLOCK.RELEASE door ann").starts_with("NOTHELD "));
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    let short = client.granted("RLOCK.ACQUIRE door ann LEASE 20");
    until(5_000, || client.shows("door") == "free:");
    for token in [token, short] {
        let line = format!("RLOCK.RELEASE door ann TOKEN {token}");
        assert!(client.error(&line).starts_with("NOTHELD "));
    }
    assert!(client.error("RLOCK.RELEASE door ann").starts_with("NOTHELD "));
}
