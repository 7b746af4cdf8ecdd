//! The README's examples inside a spawned task, where handlers of servers run. Each block of the
//! README is here, line for line.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    unused_variables,
    reason = "a test of texts"
)]

mod support;

use std::time::Duration;

use redis::Client;
use rlock_client::Locker;
use support::{Server, until};
use tokio::task::JoinHandle;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn work(_token: u64) {}

#[rustfmt::skip]
fn threads() -> JoinHandle<Outcome> {
    tokio::spawn(async move {
        let locker = rlock_client::blocking::Locker::new(redis::Client::open("redis://127.0.0.1:6380")?)?;
        let hold = locker.lock("order:42").acquire()?;
        work(hold.token()).await;
        Ok(())
    })
}

#[rustfmt::skip]
fn readers(locker: Locker) -> JoinHandle<Outcome> {
    tokio::spawn(async move {
        let hold = locker.lock("page").read().acquire().await?;
        work(hold.token()).await;
        Ok(())
    })
}

#[rustfmt::skip]
fn permits(locker: Locker) -> JoinHandle<Outcome> {
    tokio::spawn(async move {
        let hold = locker.lock("api").limit(10).max_queue(100).acquire().await?;
        work(hold.token()).await;
        Ok(())
    })
}

#[rustfmt::skip]
fn several(locker: Locker) -> JoinHandle<Outcome> {
    tokio::spawn(async move {
        use rlock_client::{limit, read};

        let all = locker.all(["account:7".into(), "account:3".into(), read("rates"), limit("pool", 20)])?;
        let hold = all.wait(Duration::from_secs(10)).acquire().await?;
        work(hold.token()).await;
        Ok(())
    })
}

#[rustfmt::skip]
fn one_of_many(locker: Locker) -> JoinHandle<Outcome> {
    tokio::spawn(async move {
        let printers = locker.any("printers", ["printer:1", "printer:2"])?;
        let hold = printers.wait(Duration::from_secs(10)).acquire().await?;
        work(hold.token()).await;
        Ok(())
    })
}

#[rustfmt::skip]
fn once(locker: Locker) -> JoinHandle<Outcome> {
    tokio::spawn(async move {
        let ran = locker.once("nightly", Duration::from_secs(3600)).run(|token, loss| async move {
            println!("nobody else runs this in this hour {token} {loss:?}");
            Ok::<_, rlock_client::Error>(())
        }).await?;
        assert!(ran.is_some());
        Ok(())
    })
}

#[rustfmt::skip]
fn leaders(locker: Locker) -> JoinHandle<Outcome> {
    tokio::spawn(async move {
        let election = locker.election("leader").name("10.0.0.1:8443");
        let hold = election.campaign().acquire().await?; // lost as soon as its connection ends

        let mut observer = election.observe(); // in other processes
        while let Ok(leader) = observer.next().await { // who leads now, and whenever that changes; None: nobody
            println!("{leader:?}");
        }
        work(hold.token()).await;
        Ok(())
    })
}

#[rustfmt::skip]
fn losses(locker: Locker) -> JoinHandle<Result<(), rlock_client::Error>> {
    tokio::spawn(async move {
        let hold = locker.lock("order:42").acquire().await?;
        tokio::select! {
            () = work(hold.token()) => hold.release().await,
            () = hold.lost() => hold.release().await, // Err(Lost)
        }
    })
}

#[rustfmt::skip]
fn listeners(client: Client) -> JoinHandle<()> {
    tokio::spawn(async move {
        struct Notes;

        impl rlock_client::Listener for Notes {
            fn waited(&mut self, event: &rlock_client::Event) {
                println!("{} {:?}: {}", event.key, event.took, event.acquired);
            }
        }

        let locker = rlock_client::Locker::new(client).listener(Notes); // before it is cloned
        work(locker.counts().held).await;
    })
}

#[rustfmt::skip]
fn drains(locker: Locker) -> JoinHandle<()> {
    tokio::spawn(async move {
        let left = locker.drain(Duration::from_secs(20)).await; // after SIGTERM
        println!("still held: {left:?}");
    })
}

#[rustfmt::skip]
fn closes(locker: Locker) -> JoinHandle<()> {
    tokio::spawn(async move {
        locker.close().await;
    })
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn each_block_of_the_readme_compiles_in_a_spawned_task() {
    let own = lines(include_str!("readme.rs"));
    let blocks: Vec<&str> = include_str!("../README.md")
        .split("\n```rust\n")
        .skip(2) // the text before, and the first block, which is a program
        .map(|rest| rest.split("\n```").next().unwrap_or_default())
        .collect();
    assert_eq!(blocks.len(), 11, "{blocks:#?}");
    for block in blocks {
        let wanted = lines(block);
        assert!(own.windows(wanted.len()).any(|here| here == wanted), "not compiled:\n{block}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_readme_shows_runs_in_spawned_tasks() {
    let server = Server::start(&[]);
    let client = Client::open(server.url()).unwrap();
    let locker = Locker::new(client.clone());
    readers(locker.clone()).await.unwrap().unwrap();
    permits(locker.clone()).await.unwrap().unwrap();
    several(locker.clone()).await.unwrap().unwrap();
    one_of_many(locker.clone()).await.unwrap().unwrap();
    once(locker.clone()).await.unwrap().unwrap();
    losses(locker.clone()).await.unwrap().unwrap();
    listeners(client.clone()).await.unwrap();
    drains(Locker::new(client)).await.unwrap();
    until("the others are released", || locker.counts().held == 0);
    let leads = leaders(locker.clone());
    until("it leads", || locker.counts().held == 1);
    closes(locker).await.unwrap();
    leads.await.unwrap().unwrap(); // its loop ends with the observer
}
