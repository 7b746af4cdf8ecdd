//! One run in each interval, on a real server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod support;

use std::time::{Duration, Instant};

use redis::Client;
use rlock_client::{Error, IfItFails, Locker, Loss, blocking};
use support::{Server, until};

const HOUR: Duration = Duration::from_secs(3600);

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn locker(server: &Server) -> Locker {
    Locker::new(Client::open(server.url()).unwrap())
}

fn threads(server: &Server) -> blocking::Locker {
    blocking::Locker::new(Client::open(server.url()).unwrap()).unwrap()
}

fn mode(server: &Server, key: &str) -> String {
    let info: redis::Value = server.ask(&format!("RLOCK.INFO {key}"));
    let fields: std::collections::HashMap<String, redis::Value> =
        redis::from_redis_value(info).unwrap();
    redis::from_redis_value(fields["mode"].clone()).unwrap()
}

async fn nothing(_: u64, _: Loss) -> Outcome {
    Ok(())
}

async fn fails(_: u64, _: Loss) -> Outcome {
    Err("of the work".into())
}

async fn takes_long(_: u64, _: Loss) -> Outcome {
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_all_runs_in_each_interval() {
    let server = Server::start(&[]);
    let (start, every) = (Instant::now(), Duration::from_secs(1));
    let work = |token, loss: Loss| async move {
        assert!(token > 0 && !loss.is_lost());
        Ok::<_, Error>("done")
    };
    assert_eq!(locker(&server).once("k", every).run(work).await.unwrap(), Some("done"));
    assert!(threads(&server).once("k", every).run(|_, _| Ok::<_, Error>(())).unwrap().is_none());
    assert!(locker(&server).once("k", every).run(fails).await.unwrap().is_none());
    let waits = locker(&server).once("k", every).wait(Duration::from_secs(20));
    assert!(waits.run(nothing).await.unwrap().is_some());
    assert!(start.elapsed() >= every);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_keeps_its_interval_or_not() {
    let server = Server::start(&[]);
    for (choice, left) in [(IfItFails::Keep, "read"), (IfItFails::Again, "free")] {
        let once = locker(&server).once(left, HOUR).if_it_fails(choice);
        assert_eq!(once.run(fails).await.unwrap_err().to_string(), "of the work");
        assert_eq!(mode(&server, left), left);
        let (key, threads) = (format!("threads-{left}"), threads(&server));
        let failed: Outcome = std::thread::spawn(move || {
            let once = threads.once(key, HOUR).if_it_fails(choice);
            once.run(|_, _| Outcome::Err("of the work".into())).map(drop)
        })
        .join()
        .unwrap();
        assert_eq!(failed.unwrap_err().to_string(), "of the work");
        assert_eq!(mode(&server, &format!("threads-{left}")), left);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_future_is_dropped_has_failed() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    for (choice, key) in [(IfItFails::Keep, "keep"), (IfItFails::Again, "again")] {
        let once = locker.once(key, HOUR).if_it_fails(choice);
        let never = once.run(|_, _| std::future::pending::<Outcome>());
        assert!(tokio::time::timeout(Duration::from_millis(300), never).await.is_err());
    }
    until("it is released", || mode(&server, "again") == "free");
    assert_eq!(mode(&server, "keep"), "write");
    assert_eq!((locker.counts().held, locker.counts().lost), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_interval_is_as_long_as_it_is() {
    let server = Server::start(&[]);
    let locker = locker(&server);
    let again = |key, every| locker.once(key, every).if_it_fails(IfItFails::Again);
    let short = Duration::from_millis(200);
    assert!(again("short", Duration::from_secs(10)).run(nothing).await.unwrap().is_some());
    assert!(server.ask::<i64>("PTTL short") <= 11_000);
    let long = again("long", HOUR).lease(Duration::from_secs(2));
    assert!(long.run(takes_long).await.unwrap().is_some());
    assert!(server.ask::<i64>("PTTL long") > 3_500_000);
    assert!(again("over", short).run(takes_long).await.unwrap().is_some());
    assert_eq!(mode(&server, "over"), "free");
    let lost = locker.once("over", short).run(takes_long).await.unwrap_err();
    assert!(matches!(lost.downcast_ref(), Some(Error::Lost)), "{lost}");
}
