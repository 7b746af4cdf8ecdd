//! The crate on real servers: dropped waits and holds leave nothing behind, losses are reported,
//! and servers may be killed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Client;
use rlock_client::{Error, Locker, blocking};
use rustix::process::{Signal, kill_process};
use support::{Server, until};
use tokio::time::{sleep, timeout};

const MINUTE: Duration = Duration::from_secs(60);

fn locker(server: &Server) -> Locker {
    Locker::new(Client::open(server.url()).unwrap())
}

fn info(server: &Server, key: &str) -> (String, u64) {
    let lock: std::collections::BTreeMap<String, redis::Value> =
        server.ask(&format!("RLOCK.INFO {key}"));
    let text = redis::from_redis_value_ref(&lock["mode"]).unwrap();
    (text, redis::from_redis_value_ref(&lock["queue-length"]).unwrap())
}

fn is_free(server: &Server, key: &str) -> bool {
    info(server, key) == ("free".to_owned(), 0)
}

#[test]
fn the_readme_shows_a_program_that_compiles() {
    let block = format!("```rust\n{}```", include_str!("readme/program.rs"));
    let readme = include_str!("../README.md");
    assert_eq!(readme.find(&block), readme.find("```rust"));
}

#[tokio::test]
async fn a_server_without_the_module_is_said_to_be_one() {
    let server = Server::bare(&[]);
    let text = locker(&server).lock("order").acquire().await.unwrap_err().to_string();
    assert!(text.starts_with("the server has not loaded the RLOCK module: "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_future_leaves_nothing_and_a_dropped_hold_is_released() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let granted = Arc::new(AtomicU64::new(0));
    let users: Vec<_> = (0..12_u64)
        .map(|user| {
            let (locker, granted) = (locker.clone(), granted.clone());
            tokio::spawn(async move {
                for round in 0..25 {
                    // Some waits are dropped at the moment of their grant: the lock changes hands
                    // all the time.
                    let patience = Duration::from_millis((user * 7 + round * 3) % 20);
                    if let Ok(hold) = timeout(patience, locker.lock("given-up").acquire()).await {
                        granted.fetch_add(1, Ordering::Relaxed);
                        sleep(Duration::from_millis(1)).await;
                        drop(hold.unwrap());
                    }
                }
            })
        })
        .collect();
    for user in users {
        user.await.unwrap();
    }
    // No lease could have ended by itself meanwhile.
    until("nothing is left", || is_free(&server, "given-up"));
    println!("{granted:?} of 300 were granted");
    locker.lock("given-up").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_its_own_and_an_owner_reenters() {
    let server = Server::start(&[]);
    let (one, two) = (locker(&server), locker(&server));
    let lease = Duration::from_secs(2);
    let task = one.clone();
    let hold = tokio::spawn(async move { task.lock("own").lease(lease).acquire().await })
        .await
        .unwrap()
        .unwrap();
    let end = hold.deadline();
    until("it is renewed beyond its lease", || Instant::now() > end && hold.deadline() > end);
    assert!(hold.is_held() && info(&server, "own").0 == "write");
    hold.release().await.unwrap();

    // One owner in two Lockers of this process: the depth is counted for both together.
    let outer = one.lock("deep").owner("ann").acquire().await.unwrap();
    let inner = two.lock("deep").owner("ann").acquire().await.unwrap();
    assert_eq!(outer.token(), inner.token());
    outer.release().await.unwrap();
    assert!(matches!(one.lock("deep").try_acquire().await, Err(Error::NotAcquired)));
    inner.release().await.unwrap();
    assert!(is_free(&server, "deep"));

    let reading = one.lock("up").read().owner("bob").acquire().await.unwrap();
    assert!(matches!(one.lock("up").owner("bob").acquire().await, Err(Error::Deadlock(_))));
    one.lock("up").owner("bob").upgrade().acquire().await.unwrap().release().await.unwrap();
    reading.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_cloned_is_another_owner_unless_it_is_named() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let one = locker.lock("one");
    let hold = one.clone().acquire().await.unwrap();
    assert!(matches!(one.try_acquire().await, Err(Error::NotAcquired)));
    hold.release().await.unwrap();
    let all = locker.all(["a", "b"]).unwrap();
    let hold = all.clone().acquire().await.unwrap();
    assert!(matches!(all.wait(Duration::ZERO).acquire().await, Err(Error::NotAcquired)));
    hold.release().await.unwrap();
    let campaign = locker.election("leader").name("10.0.0.1:8443").campaign();
    let hold = campaign.clone().acquire().await.unwrap();
    assert!(hold.owner().starts_with("10.0.0.1:8443/"), "{}", hold.owner());
    assert!(matches!(campaign.try_acquire().await, Err(Error::NotAcquired)));
    hold.release().await.unwrap();
    let named = locker.lock("named").owner("ann");
    let hold = named.clone().acquire().await.unwrap();
    named.try_acquire().await.unwrap().release().await.unwrap();
    hold.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_before_its_turn_leaves_nothing_to_undo() {
    let server = Server::start(&[]);
    let request = locker(&server).lock("k").owner("ann");
    server.ask::<u64>("RLOCK.ACQUIRE k somebody");
    let first = tokio::spawn(request.clone().acquire());
    until("it waits", || info(&server, "k").1 == 1);
    assert!(timeout(Duration::from_millis(1), request.clone().acquire()).await.is_err());
    let third = request.try_acquire().await;
    assert!(matches!(third, Err(Error::NotAcquired)), "{third:?}");
    first.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_lease_of_all_levels_is_renewed() {
    let server = Server::start(&[]);
    let request = locker(&server).lock("deep").owner("ann");
    let short = Duration::from_millis(600);
    let outer = request.clone().lease(short).acquire().await.unwrap();
    let inner = request.lease(Duration::from_secs(3)).acquire().await.unwrap();
    let end = inner.deadline();
    until("it is renewed beyond its lease", || Instant::now() > end && outer.is_held());
    let left = outer.deadline().saturating_duration_since(Instant::now());
    assert!(left > short, "{left:?}");
    inner.release().await.unwrap();
    outer.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_told_before_it_is_one() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let hold = locker.lock("forced").lease(Duration::from_millis(900)).acquire().await.unwrap();
    server.ask::<u64>("RLOCK.FORCE forced");
    timeout(MINUTE, hold.lost()).await.unwrap();
    assert!(hold.loss().is_lost() && matches!(hold.release().await, Err(Error::Lost)));

    let hold = locker.lock("silent").lease(Duration::from_millis(1200)).acquire().await.unwrap();
    kill_process(server.pid(), Signal::STOP).unwrap();
    hold.lost().await;
    let left = hold.deadline().checked_duration_since(Instant::now());
    kill_process(server.pid(), Signal::CONT).unwrap();
    assert!(left.is_some(), "late");
    assert!(matches!(hold.release().await, Err(Error::Lost)));
    until("it is free", || is_free(&server, "silent"));
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_and_holds_outlive_a_server_that_is_killed_and_comes_back() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    for _ in 0..2 {
        let locker = locker(&server);
        let () = server.ask("RLOCK.ACQUIRE kept somebody LEASE 60000");
        let mine = locker.lock("mine").lease(Duration::from_secs(5)).acquire().await.unwrap();
        let waits = tokio::spawn(locker.lock("kept").wait(MINUTE).acquire());
        until("it waits", || info(&server, "kept").1 == 1);
        server.kill();
        sleep(Duration::from_millis(300)).await;
        server.again();
        until("it waits again", || info(&server, "kept").1 == 1);
        assert_eq!(server.ask::<u64>("RLOCK.RELEASE kept somebody"), 0);
        waits.await.unwrap().unwrap().release().await.unwrap();
        assert!(mine.is_held());
        mine.release().await.unwrap();
    }
    server.kill();
    let begin = Instant::now();
    let refused = locker(&server).lock("gone").wait(Duration::from_millis(500)).acquire().await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!((500..5000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    let leader = locker(&server).election("leader").leader().await;
    assert!(matches!(leader, Err(Error::Unavailable(_))), "{leader:?}");
}

/// Twenty tasks and three kills: a hold that is certain is the only one, and all tasks make
/// progress.
#[tokio::test(flavor = "multi_thread")]
async fn under_load_while_the_server_is_killed_and_stopped() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let locker = locker(&server);
    let (inside, rounds) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicU64::new(0)));
    let (ending, newest) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicU64::new(0)));
    let users: Vec<_> = (0..20)
        .map(|_| {
            let (locker, inside, rounds) = (locker.clone(), inside.clone(), rounds.clone());
            let (ending, newest) = (ending.clone(), newest.clone());
            tokio::spawn(async move {
                while ending.load(Ordering::Relaxed) == 0 {
                    let lease = Duration::from_secs(3);
                    let hold =
                        locker.lock("load").wait(MINUTE).lease(lease).acquire().await.unwrap();
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    assert!(others == 0 || !hold.is_held(), "two at once");
                    assert!(newest.swap(hold.token(), Ordering::SeqCst) < hold.token());
                    rounds.fetch_add(1, Ordering::Relaxed);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    match hold.release().await {
                        Ok(()) | Err(Error::Lost | Error::Unavailable(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        server.kill();
        sleep(Duration::from_millis(200)).await;
        server.again();
        let before = rounds.load(Ordering::Relaxed);
        until("they get on", || rounds.load(Ordering::Relaxed) > before + 20);
        kill_process(server.pid(), Signal::STOP).unwrap();
        sleep(Duration::from_millis(500)).await;
        kill_process(server.pid(), Signal::CONT).unwrap();
    }
    ending.store(1, Ordering::Relaxed);
    for user in users {
        user.await.unwrap();
    }
    until("nothing is left", || is_free(&server, "load"));
}

#[test]
fn threads_take_turns_and_a_session_ends_with_its_connection() {
    let server = Server::start(&[]);
    let locker = blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap();
    let inside = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let _hold = locker.lock("threads").wait(MINUTE).acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(is_free(&server, "threads"));
    let hold = locker.lock("tied").session().lease(Duration::from_secs(3)).acquire().unwrap();
    assert!(!hold.lost_within(Duration::from_millis(10)));
    let killed: u64 = server.ask("CLIENT KILL TYPE normal");
    assert!(killed > 0 && hold.lost_within(Duration::from_millis(900)));
    assert!(matches!(hold.release(), Err(Error::Lost)));
    assert!(matches!(locker.lock("tied").try_acquire().map(drop), Ok(())));
}

#[tokio::test]
async fn errors_have_types_of_their_own() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let () = server.ask("ACL SETUSER guest on >secret ~app:* &* +@all");
    let guest = Locker::new(
        Client::open(format!("redis://guest:secret@127.0.0.1:{}", server.port)).unwrap(),
    );
    assert!(matches!(guest.lock("theirs").acquire().await, Err(Error::NoPerm(_))));
    guest.lock("app:ours").acquire().await.unwrap().release().await.unwrap();
    let () = server.ask("CONFIG SET rlock.max-tells 0");
    let hold = locker.lock("few").acquire().await.unwrap();
    assert!(matches!(locker.lock("few").acquire().await, Err(Error::TooMany(_))));
    hold.release().await.unwrap();
    assert!(Locker::cluster(Vec::<String>::new()).is_err());
}

/// Otherwise, such an owner would learn of its grant only when it asks again, up to a second later.
#[tokio::test(flavor = "multi_thread")]
async fn each_owner_hears_of_its_grant_whatever_its_name() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    for name in ["ann", "Zoë", "CORP\\alice", "a b", "\"quoted\"", "nul\0nul", "\u{1}\n", "日本"]
    {
        let mut soon = 0;
        for round in 0..8 {
            let key = format!("{name}:{round}");
            let held = locker.lock(&key).acquire().await.unwrap();
            let waits = tokio::spawn(locker.lock(&key).owner(name).acquire());
            until("it waits", || server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len() == 1);
            held.release().await.unwrap();
            let begun = Instant::now();
            waits.await.unwrap().unwrap().release().await.unwrap();
            soon += usize::from(begun.elapsed() < Duration::from_millis(250));
        }
        assert!(soon >= 7, "{name:?}: {soon} of 8");
    }
}

#[tokio::test]
async fn without_renewal_a_hold_ends_with_its_lease() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let request = locker.lock("once").lease(Duration::from_secs(2)).no_renewal();
    let request = request.owner_prefix("web/report");
    let owner = request.owner_name().to_owned();
    assert!(owner.starts_with("web/report/"), "{owner}");
    assert_ne!(request.clone().owner_name(), owner);
    let start = Instant::now();
    let hold = request.acquire().await.unwrap();
    assert_eq!(hold.owner(), owner);
    timeout(MINUTE, hold.lost()).await.unwrap();
    assert!(start.elapsed() > Duration::from_millis(1500), "{:?}", start.elapsed());
    assert!(!hold.is_held());
    assert!(matches!(hold.release().await, Err(Error::Lost)));
    until("its lease is over", || is_free(&server, "once"));

    let all = locker.all(["a", "b"]).unwrap().owner_prefix("web/report").no_renewal();
    let owner = all.owner_name().to_owned();
    let hold = all.acquire().await.unwrap();
    assert!(owner.starts_with("web/report/") && hold.owner() == owner, "{owner}");
    hold.release().await.unwrap();
}
