//! A permanent error ends each call soon, however long it may wait, and names the cause.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "../../cli/tests/support/sentinel.rs"]
mod sentinel;
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::pin::Pin;
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
#[cfg(feature = "tls")]
use redis::TlsCertificates;
use rlock_client::{Error, Locker, blocking};
use sentinel::Sentinel;
use support::{Server, replica_of};
#[cfg(feature = "tls")]
use tls::Tls;

/// A locker that cannot work, and a part of the text that its errors must have.
struct Case {
    what: &'static str,
    locker: Locker,
    cause: &'static str,
}

fn one(what: &'static str, url: &str, cause: &'static str) -> Case {
    Case { what, locker: Locker::new(Client::open(url).unwrap()), cause }
}

type Called = Pin<Box<dyn Future<Output = Option<Error>> + Send>>;

type Call = (&'static str, fn(Locker) -> Called);

/// All calls that ask a server. Only the first has a time limit of its own.
const CALLS: [Call; 9] = [
    ("try_acquire", |locker| {
        Box::pin(async move { locker.lock("k").try_acquire().await.map(drop).err() })
    }),
    ("acquire", |locker| Box::pin(async move { locker.lock("k").acquire().await.map(drop).err() })),
    ("acquire for ten minutes", |locker| {
        let request = locker.lock("k").wait(Duration::from_secs(600));
        Box::pin(async move { request.acquire().await.map(drop).err() })
    }),
    ("session", |locker| {
        Box::pin(async move { locker.lock("k").session().acquire().await.map(drop).err() })
    }),
    ("read", |locker| {
        let request = locker.lock("k").read();
        Box::pin(async move { request.acquire().await.map(drop).err() })
    }),
    ("named owner", |locker| {
        Box::pin(async move { locker.lock("k").owner("ann").acquire().await.map(drop).err() })
    }),
    ("all", |locker| {
        Box::pin(async move { locker.all(["k"]).unwrap().acquire().await.map(drop).err() })
    }),
    ("permit, acks", |locker| {
        Box::pin(async move { locker.lock("k").limit(2).acks(1).acquire().await.map(drop).err() })
    }),
    ("campaign", |locker| {
        Box::pin(async move { locker.election("k").campaign().acquire().await.map(drop).err() })
    }),
];

/// Requests that replicas answer.
const LOOKS: [Call; 2] = [
    ("leader", |locker| {
        Box::pin(async move { locker.election("k").leader().await.map(drop).err() })
    }),
    ("observe", |locker| {
        let mut observer = locker.election("k").observe();
        Box::pin(async move { observer.next().await.map(drop).err() })
    }),
];

/// A replica counts as permanent once a failover would have ended. The rest of this time is for a
/// busy machine.
const SOON: Duration = Duration::from_secs(8);

async fn try_all(case: &Case, calls: &[Call], wrong: &mut Vec<String>) {
    let begun = Instant::now();
    let each = calls.iter().map(|(name, call)| (name, tokio::spawn(call(case.locker.clone()))));
    for (name, called) in each.collect::<Vec<_>>() {
        let left = SOON.saturating_sub(begun.elapsed());
        let abort = called.abort_handle();
        let told = match tokio::time::timeout(left, called).await {
            Ok(Ok(Some(error))) => error.to_string(),
            other => {
                abort.abort();
                format!("{other:?}")
            }
        };
        if !told.contains(case.cause) {
            wrong.push(format!("{}: {name}: {told}", case.what));
        }
    }
}

/// Answers each connection, with or without TLS, as web servers do.
fn web_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    url
}

const WRONG_PASSWORD: &str = "WRONGPASS";
const NO_MODULE: &str = "the server has not loaded the RLOCK module";

fn with_user(server: &Server, user: &str) -> String {
    format!("redis://{user}:secret@127.0.0.1:{}", server.port)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_later_try_can_change_ends_at_once_with_its_cause() {
    let server = Server::start(&["--requirepass", "open-sesame"]);
    let secured = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    let users = Server::start(&[]);
    for rule in [
        "ACL SETUSER nothing on >secret ~* &* -@all +hello",
        "ACL SETUSER other on >secret ~other:* &* +@all",
        "ACL SETUSER off off >secret ~* &* +@all",
    ] {
        let () = users.ask(rule);
    }
    let bare = Server::bare(&[]);
    let plain = Server::start(&[]);
    let known = Sentinel::of(&plain);
    let guarded = Sentinel::with(&plain, &["requirepass watch"]);
    let url = |port: u16| format!("redis://127.0.0.1:{port}");
    let sentinel =
        |port: u16, name: &str, node: &str| Locker::sentinel([url(port)], name, node).unwrap();
    let cluster = |url: String| Locker::cluster([url]).unwrap();
    let cases = [
        one("wrong password", &secured("guess"), WRONG_PASSWORD),
        one("no password", &url(server.port), "NOAUTH"),
        one("unknown user", &with_user(&users, "nobody"), WRONG_PASSWORD),
        one("disabled user", &with_user(&users, "off"), WRONG_PASSWORD),
        one("no permission", &with_user(&users, "nothing"), "NoPerm"),
        one("no permission for the key", &with_user(&users, "other"), "NoPerm"),
        one("no module", &url(bare.port), NO_MODULE),
        one("no such database", &format!("{}/99", url(plain.port)), "database"),
        one("a web server", &web_server(), "cannot be used"),
        Case {
            what: "Sentinel: wrong name",
            locker: sentinel(known.port, "other", "redis://127.0.0.1"),
            cause: "no Sentinel monitors a primary of this name",
        },
        Case {
            what: "Sentinel: no password",
            locker: sentinel(guarded.port, "mine", "redis://127.0.0.1"),
            cause: "NOAUTH",
        },
        Case {
            what: "Sentinel: wrong password at the primary",
            locker: sentinel(known.port, "mine", "redis://u:guess@127.0.0.1"),
            cause: WRONG_PASSWORD,
        },
        Case {
            what: "Cluster: wrong password",
            locker: cluster(secured("guess")),
            cause: "Password authentication failed",
        },
        Case {
            what: "Cluster: of one server that is none",
            locker: cluster(url(plain.port)),
            cause: "cluster support disabled",
        },
        Case {
            what: "Cluster: a web server",
            locker: cluster(web_server()),
            cause: "cannot be used",
        },
    ];
    let mut wrong = Vec::new();
    for case in &cases {
        try_all(case, &CALLS, &mut wrong).await;
        try_all(case, &LOOKS, &mut wrong).await;
    }
    let primary = Server::start(&[]);
    let replica = replica_of(&primary);
    let case = one("a replica", &url(replica.port), "read only replica");
    try_all(&case, &CALLS, &mut wrong).await;
    assert!(wrong.is_empty(), "of {} calls:\n{}", cases.len() * 11 + 9, wrong.join("\n"));
}

/// A thread waits for the same answers.
#[test]
fn threads_are_told_as_well() {
    let server = Server::start(&["--requirepass", "open-sesame"]);
    let bare = Server::bare(&[]);
    for (url, cause) in [
        (format!("redis://:guess@127.0.0.1:{}", server.port), WRONG_PASSWORD),
        (bare.url(), NO_MODULE),
        (web_server(), "cannot be used"),
    ] {
        let locker = blocking::Locker::new(Client::open(url).unwrap()).unwrap();
        let begun = Instant::now();
        let error = locker.lock("k").acquire().unwrap_err().to_string();
        assert!(error.contains(cause) && begun.elapsed() < SOON, "{error}");
    }
}

/// If a server was a primary before, calls wait: another one will take its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_becomes_a_replica_is_waited_for() {
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    let locker = Locker::new(Client::open(server.url()).unwrap());
    locker.lock("k").acquire().await.unwrap().release().await.unwrap();
    let () = server.ask(&format!("REPLICAOF 127.0.0.1 {}", other.port));
    let waits = tokio::spawn(locker.lock("k").acquire());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!waits.is_finished());
    let () = server.ask("REPLICAOF NO ONE");
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_trusted_ends_each_call() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(tls) = Tls::start(&[]) else { return };
    let root_cert = Some(std::fs::read(tls.certificate()).unwrap());
    let trusted = TlsCertificates { client_tls: None, root_cert };
    let elsewhere = format!("rediss://127.0.0.1:{}", tls.port);
    let elsewhere = Client::build_with_tls(elsewhere, trusted).unwrap();
    let cases = [
        one("not trusted", &tls.url(), "certificate"),
        one("no TLS there", &web_server().replace("redis:", "rediss:"), "cannot be used"),
        Case { what: "another name", locker: Locker::new(elsewhere), cause: "certificate" },
        Case {
            what: "Cluster: not trusted",
            locker: Locker::cluster([tls.url()]).unwrap(),
            cause: "certificate",
        },
        Case {
            what: "Sentinel: not trusted",
            locker: Locker::sentinel([tls.url()], "mine", "redis://127.0.0.1").unwrap(),
            cause: "certificate",
        },
    ];
    let mut wrong = Vec::new();
    for case in &cases {
        try_all(case, &CALLS, &mut wrong).await;
        try_all(case, &LOOKS, &mut wrong).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
