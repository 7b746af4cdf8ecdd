//! Many users of one lock object, and the cost of a pair compared with bare commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionAddr, IntoConnectionInfo, RedisError, RedisResult};
use rlock_client::Error;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::Order;
use crate::locks::{Client, Hold, Lock, Locker};

/// Sends a command with redis-rs itself, wherever that leads.
async fn plain<T: redis::FromRedisValue>(client: &Client, command: &Cmd) -> RedisResult<T> {
    let mut info = client.nodes[0].clone();
    if let Some(service) = &client.service {
        let mut sentinel =
            redis::Client::open(info.clone())?.get_multiplexed_async_connection().await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let (host, port) = ask.query_async(&mut sentinel).await?;
        info = info.set_addr(ConnectionAddr::Tcp(host, port));
    }
    loop {
        let mut connection =
            redis::Client::open(info.clone())?.get_multiplexed_async_connection().await?;
        let reply = command.query_async(&mut connection).await;
        match reply.as_ref().err().and_then(RedisError::redirect_node) {
            Some((addr, _slot)) => info = format!("redis://{addr}").into_connection_info()?,
            None => return reply,
        }
    }
}

pub async fn churn(lock: Lock, order: Order) -> Result<Value, Error> {
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let users: Vec<_> = (0..order.users)
        .map(|_| {
            let (lock, order, inside, most) =
                (lock.clone(), order.clone(), inside.clone(), most.clone());
            tokio::spawn(async move {
                for _ in 0..order.times {
                    let hold = lock.acquire(None).await?;
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let count: Option<u64> =
                        plain(&lock.client, redis::cmd("GET").arg(&order.counter)).await?;
                    let next = count.unwrap_or(0) + 1;
                    let () = plain(&lock.client, redis::cmd("SET").arg(&order.counter).arg(next))
                        .await?;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    hold.release().await?;
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for user in users {
        user.await.unwrap()?;
    }
    Ok(json!({"ok": true, "inside": most.load(Ordering::SeqCst)}))
}

pub async fn bench(client: Client, order: Order) -> Result<Value, Error> {
    let is_sync = matches!(client.locker, Locker::Sync(_));
    let node = redis::Client::open(client.nodes[0].clone())?;
    let (mut count, mut took, mut busy) = ([0_u32; 2], [Duration::ZERO; 2], [Duration::ZERO; 2]);
    let end = Instant::now() + Duration::from_millis(order.ms);
    let acquire = redis::cmd("RLOCK.ACQUIRE").arg(&order.key).arg("o").arg("DEPTH").arg(1).clone();
    let release = redis::cmd("RLOCK.RELEASE")
        .arg(&order.key)
        .arg("o")
        .arg("WRITE")
        .arg("DEPTH")
        .arg(0)
        .clone();
    let mut bare = node.get_multiplexed_async_connection().await?;
    let lock = Lock { client, order };
    let mut turn = 0;
    while Instant::now() < end {
        let (start, cpu) = (Instant::now(), cpu_time());
        if is_sync {
            let (lock, node, acquire, release) =
                (lock.clone(), node.clone(), acquire.clone(), release.clone());
            let work = move || sync_turn(turn, &lock, &node, &acquire, &release);
            count[turn] += tokio::task::spawn_blocking(work).await.unwrap()?;
        } else {
            while start.elapsed() < Duration::from_millis(200) {
                if turn == 0 {
                    lock.acquire(None).await?.release().await?;
                } else {
                    let _: u64 = acquire.query_async(&mut bare).await?;
                    let _: u64 = release.query_async(&mut bare).await?;
                }
                count[turn] += 1;
            }
        }
        took[turn] += start.elapsed();
        busy[turn] += cpu_time().saturating_sub(cpu);
        turn = 1 - turn;
    }
    let rate = |at: usize| f64::from(count[at]) / took[at].as_secs_f64();
    let cpu = |at: usize| busy[at].as_secs_f64() * 1e6 / f64::from(count[at]);
    Ok(json!({
        "package": rate(0), "bare": rate(1), "packageCpu": cpu(0), "bareCpu": cpu(1),
    }))
}

/// The processor time that this process has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn sync_turn(
    turn: usize,
    lock: &Lock,
    node: &redis::Client,
    acquire: &Cmd,
    release: &Cmd,
) -> Result<u32, Error> {
    let mut connection = node.get_connection()?;
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(200) {
        if turn == 0 {
            let Locker::Sync(locker) = &lock.client.locker else { return Ok(0) };
            let hold = locker.lock(&lock.order.key).acquire().map(Hold::Sync)?;
            let Hold::Sync(hold) = hold else { return Ok(0) };
            hold.release()?;
        } else {
            let _: u64 = acquire.query(&mut connection)?;
            let _: u64 = release.query(&mut connection)?;
        }
        count += 1;
    }
    Ok(count)
}
