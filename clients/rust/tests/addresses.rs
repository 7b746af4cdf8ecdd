//! Every way to give redis-rs the address of a server, and the use of locks there.
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

use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

#[cfg(feature = "tls")]
use redis::TlsCertificates;
use redis::{Client, IntoConnectionInfo, ProtocolVersion};
use rlock_client::{Error, Locker, blocking};
use sentinel::Sentinel;
use support::{Server, cluster};
#[cfg(feature = "tls")]
use tls::Tls;
use tokio::time::timeout;

/// A way to name a server.
struct Way {
    what: &'static str,
    locker: Locker,
}

fn one(what: &'static str, url: &str) -> Way {
    Way { what, locker: Locker::new(Client::open(url).unwrap()) }
}

type Done = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

type Deed = (&'static str, fn(Locker, Vec<u8>) -> Done);

/// Each gets a key of its own, which is not valid UTF-8.
const DEEDS: [Deed; 8] = [
    ("a lock", |locker, key| {
        Box::pin(async move {
            let hold = locker.lock(&key).acquire().await?;
            assert_eq!(hold.key(), key);
            let other = locker.lock(&key).try_acquire().await;
            assert!(matches!(other, Err(Error::NotAcquired)), "{other:?}");
            hold.release().await
        })
    }),
    ("a session", |locker, key| {
        Box::pin(async move { locker.lock(key).session().acquire().await?.release().await })
    }),
    ("a wait", |locker, key| {
        Box::pin(async move {
            let hold = locker.lock(&key).acquire().await?;
            let next = tokio::spawn(locker.lock(key).wait(SOON).acquire());
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(!next.is_finished());
            hold.release().await?;
            next.await.unwrap()?.release().await
        })
    }),
    ("several locks", |locker, key| {
        Box::pin(async move {
            let other = [&key[..], b"other"].concat();
            locker.all([key, other])?.acquire().await?.release().await
        })
    }),
    ("a named owner", |locker, key| {
        Box::pin(async move {
            let request = locker.lock(key).owner("Zoë \u{7f}");
            let outer = request.clone().acquire().await?;
            request.acquire().await?.release().await?;
            outer.release().await
        })
    }),
    ("permits and readers", |locker, key| {
        Box::pin(async move {
            let permit = locker.lock(&key).limit(2).acquire().await?;
            let other = locker.lock(key).read().acquire().await?;
            other.release().await?;
            permit.release().await
        })
    }),
    ("an election", |locker, key| {
        Box::pin(async move {
            let election = locker.election(key).name("me");
            let hold = election.campaign().acquire().await?;
            let mut observer = election.observe();
            let leader = observer.next().await?;
            assert_eq!(leader.map(|leader| leader.name().to_owned()), Some("me".into()));
            assert!(election.leader().await?.is_some());
            hold.release().await?;
            assert_eq!(observer.next().await?, None);
            Ok(())
        })
    }),
    ("a renewal", |locker, key| {
        Box::pin(async move {
            let hold = locker.lock(key).lease(Duration::from_secs(2)).acquire().await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            hold.release().await
        })
    }),
];

const SOON: Duration = Duration::from_secs(20);

async fn try_all(ways: Vec<Way>) {
    let mut all = Vec::new();
    for way in ways {
        for (what, deed) in DEEDS {
            let cell = format!("{}: {what}", way.what);
            let key = [format!("{{{cell}}}").as_bytes(), b"\xff\x00\r\n "].concat();
            all.push((cell, tokio::spawn(timeout(SOON, deed(way.locker.clone(), key)))));
        }
    }
    let (count, mut wrong) = (all.len(), Vec::new());
    for (cell, done) in all {
        let done = done.await;
        if !matches!(done, Ok(Ok(Ok(())))) {
            wrong.push(format!("{cell}: {done:?}"));
        }
    }
    println!("{count} cells");
    assert!(wrong.is_empty(), "of {count} cells:\n{}", wrong.join("\n"));
}

fn socket() -> PathBuf {
    std::env::temp_dir().join(format!(
        "rlock-socket-{}-{}",
        std::process::id(),
        support::free_port()
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_work_wherever_redis_rs_finds_its_server() {
    let path = socket();
    let path = path.display();
    let plain = Server::start(&["--unixsocket", &path.to_string(), "--bind", "127.0.0.1", "-::1"]);
    let secret = socket();
    let secret = secret.display();
    let secured =
        Server::start(&["--requirepass", "p@ss/wörd", "--unixsocket", &secret.to_string()]);
    let mut asker = Client::open(format!("redis+unix://{secret}?pass=p%40ss%2Fw%C3%B6rd"));
    let mut asker = asker.as_mut().unwrap().get_connection().unwrap();
    let () = redis::cmd("ACL")
        .arg(&["SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all"])
        .query(&mut asker)
        .unwrap();
    let of = |server: &Server, rest: &str| format!("redis://{rest}:{}", server.port);
    let mut ways = vec![
        one("an address", &of(&plain, "127.0.0.1")),
        one("a name", &of(&plain, "localhost")),
        one("a database", &(of(&plain, "127.0.0.1") + "/5")),
        one("RESP2", &(of(&plain, "127.0.0.1") + "/?protocol=resp2")),
        one("RESP3", &(of(&plain, "127.0.0.1") + "/?protocol=resp3")),
        one("a socket", &format!("unix://{path}")),
        one("a socket, and a database", &format!("redis+unix://{path}?db=4")),
        one("a socket, and a password", &format!("unix://{secret}?pass=p%40ss%2Fw%C3%B6rd")),
        one("a socket, and a user", &format!("unix://{secret}?user=ann&pass=secret&db=2")),
        one("a password", &of(&secured, ":p%40ss%2Fw%C3%B6rd@127.0.0.1")),
        one("a user", &of(&secured, "ann:secret@127.0.0.1")),
    ];
    let by_hand = plain.url().into_connection_info().unwrap();
    let settings = by_hand.redis_settings().clone();
    let settings = settings.set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name().set_db(3);
    let client = Client::open(by_hand.set_redis_settings(settings)).unwrap();
    ways.push(Way { what: "a ConnectionInfo", locker: Locker::new(client) });
    if Client::open(of(&plain, "[::1]")).unwrap().get_connection().is_ok() {
        ways.push(one("IPv6", &of(&plain, "[::1]")));
    }
    let sentinel = Sentinel::of(&plain);
    let guarded = Sentinel::with(&plain, &["requirepass watch"]);
    let [open, shut] = [&sentinel, &guarded].map(|one| one.port);
    let sentinels = |what, seeds: &[String], node: &str| Way {
        what,
        locker: Locker::sentinel(seeds.to_vec(), "mine", node).unwrap(),
    };
    let nobody = format!("redis://127.0.0.1:{}", support::free_port());
    let open = format!("redis://127.0.0.1:{open}");
    ways.extend([
        sentinels("Sentinel", std::slice::from_ref(&open), "redis://127.0.0.1"),
        sentinels("Sentinel, the second one", &[nobody.clone(), open.clone()], "redis://127.0.0.1"),
        sentinels("Sentinel, and a database", &[open], "redis://127.0.0.1/6"),
        sentinels(
            "Sentinel with a password",
            &[format!("redis://:watch@127.0.0.1:{shut}")],
            "redis://127.0.0.1/?protocol=resp2",
        ),
    ]);
    let nodes = cluster(&["0 8191", "8192 16383"]);
    let clusters =
        |what, seeds: &[String]| Way { what, locker: Locker::cluster(seeds.to_vec()).unwrap() };
    ways.extend([
        clusters("Cluster", &[nodes[0].url()]),
        clusters("Cluster, by the other one", &[nodes[1].url()]),
        clusters("Cluster, of which a node is down", &[nobody, nodes[1].url()]),
        clusters("Cluster, RESP2", &[nodes[0].url() + "/?protocol=resp2"]),
        one("one node of a Cluster", &nodes[0].url()),
    ]);
    try_all(ways).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn locks_work_over_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(tls) = Tls::start(&[]) else { return };
    let () = tls.server.ask("ACL SETUSER ann on >secret ~* &* +@all");
    let root_cert = Some(std::fs::read(tls.certificate()).unwrap());
    let with = |url: String, client_tls| {
        let certificates = TlsCertificates { client_tls, root_cert: root_cert.clone() };
        Client::build_with_tls(url, certificates).unwrap()
    };
    let client_tls = redis::ClientTlsConfig {
        client_cert: std::fs::read(tls.certificate()).unwrap(),
        client_key: std::fs::read(tls.key()).unwrap(),
    };
    let user = format!("rediss://ann:secret@localhost:{}/2", tls.port);
    let ways = [
        ("TLS", with(tls.url(), None)),
        ("TLS, and a user", with(user, None)),
        ("TLS, and a certificate", with(tls.url(), Some(client_tls))),
        ("TLS, and RESP2", with(tls.url() + "/?protocol=resp2", None)),
    ];
    let way = |(what, client)| Way { what, locker: Locker::new(client) };
    try_all(ways.map(way).into()).await;
}

/// A thread sends its requests on connections of its own.
#[test]
fn threads_find_their_server_too() {
    let path = socket();
    let server = Server::start(&["--unixsocket", &path.display().to_string()]);
    for url in [server.url(), format!("unix://{}", path.display()), server.url() + "/3"] {
        let locker = blocking::Locker::new(Client::open(url.clone()).unwrap()).unwrap();
        for _ in 0..3 {
            let hold = locker.lock(b"\xff\x00\r\n").acquire().unwrap();
            let other = locker.lock(b"\xff\x00\r\n").try_acquire();
            assert!(matches!(other, Err(Error::NotAcquired)), "{url}: {other:?}");
            hold.release().unwrap();
        }
    }
}

#[tokio::test]
async fn a_name_that_no_owner_may_have_is_explained() {
    let server = Server::start(&[]);
    let locker = Locker::new(Client::open(server.url()).unwrap());
    for (name, text) in [("", "owner"), (&"x".repeat(70_000), "owner")] {
        let error = locker.lock("k").owner(name).acquire().await.unwrap_err().to_string();
        assert!(error.to_lowercase().contains(text), "{error}");
    }
    assert_eq!(server.ask::<Vec<String>>("KEYS *"), Vec::<String>::new());
}
