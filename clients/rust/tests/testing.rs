//! What users test with: a real server with the module.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use rlock_client::testing::Server;
use rlock_client::{Error, Locker};

#[tokio::test(flavor = "multi_thread")]
async fn the_second_one_waits() {
    let mut server = Server::start(&["--maxclients", "50"]).unwrap();
    let locker = Locker::new(server.client().unwrap());
    let hold = locker.lock("order:42").acquire().await.unwrap();
    assert!(matches!(locker.lock("order:42").try_acquire().await, Err(Error::NotAcquired)));
    let other = Server::start(&["--requirepass", "secret"]).unwrap();
    assert_ne!(server.port(), other.port());
    server.empty().unwrap();
    locker.lock("order:42").try_acquire().await.unwrap().release().await.unwrap();
    drop(hold);
    server.kill().unwrap();
    server.again().unwrap();
    assert!(server.url().ends_with(&server.port().to_string()));
}

#[test]
fn what_does_not_start_is_said() {
    let said = Server::start(&["--nonsense", "yes"]).unwrap_err().to_string();
    assert!(said.contains("the server did not start") && said.contains("nonsense"), "{said}");
}
