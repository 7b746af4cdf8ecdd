//! Holds a lock for a moment.

use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = redis::Client::open("redis://127.0.0.1:6380")?;
    let locker = rlock_client::Locker::new(client); // one for the whole program
    let hold = locker.lock("order:42").wait(Duration::from_secs(10)).acquire().await?;
    println!("it is mine, with the token {}", hold.token());
    hold.release().await?;
    Ok(())
}
