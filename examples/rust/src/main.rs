//! Locks in Rust: exclusive, shared, and a lock that is lost. The server is at `127.0.0.1:$PORT`, or 6380.

use std::error::Error;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use rlock_client::Locker;

const WAIT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let port = std::env::var("PORT").unwrap_or_else(|_| "6380".to_owned());
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let locker = Locker::new(client);

    // Ten tasks add to a counter that lacks an atomic increment.
    redis::cmd("DEL").arg("rust:count").exec_async(&mut connection).await?;
    let tasks: Vec<_> =
        (0..10).map(|_| tokio::spawn(count(locker.clone(), connection.clone()))).collect();
    for task in tasks {
        task.await??;
    }
    let counted: u32 = redis::cmd("GET").arg("rust:count").query_async(&mut connection).await?;
    println!("counted: {counted}");

    // Readers share the lock. A writer would have to wait, and this one does not want to.
    let reader = locker.lock("rust:page").read().acquire().await?;
    let other = locker.lock("rust:page").read().try_acquire().await;
    let writer = locker.lock("rust:page").try_acquire().await;
    println!("a reader shares: {}  a writer enters: {}", other.is_ok(), writer.is_ok());
    reader.release().await?; // `other` is released when it is dropped

    // The hold reports its loss, which an operator causes here. The token guards the write.
    let hold = locker.lock("rust:stock").lease(Duration::from_secs(1)).acquire().await?;
    redis::cmd("RLOCK.FORCE").arg("rust:stock").exec_async(&mut connection).await?;
    hold.lost().await;
    let mut check = redis::cmd("RLOCK.CHECK");
    let alive: bool =
        check.arg("rust:stock").arg(hold.token()).query_async(&mut connection).await?;
    println!("told: it is lost  may write: {alive}  released: {:?}", hold.release().await);
    Ok(())
}

async fn count(
    locker: Locker,
    mut connection: MultiplexedConnection,
) -> Result<(), rlock_client::Error> {
    let hold = locker.lock("rust:counter").wait(WAIT).acquire().await?;
    let count: Option<u32> =
        redis::cmd("GET").arg("rust:count").query_async(&mut connection).await?;
    redis::cmd("SET")
        .arg("rust:count")
        .arg(count.unwrap_or(0) + 1)
        .exec_async(&mut connection)
        .await?;
    hold.release().await
}
