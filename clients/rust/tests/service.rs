//! A server of axum that shuts down: requests that have the lock end, those that wait get an error, and nothing stays behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod support;

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use redis::Client;
use rlock_client::{Error, Locker};
use support::{Server, is_held, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

async fn report(State(locker): State<Locker>) -> Result<String, StatusCode> {
    let hold = match locker.lock("report").lease(Duration::from_millis(900)).acquire().await {
        Ok(hold) => hold,
        Err(Error::Closed) => return Err(StatusCode::SERVICE_UNAVAILABLE),
        Err(_) => return Err(StatusCode::INTERNAL_SERVER_ERROR),
    };
    tokio::time::sleep(Duration::from_secs(2)).await; // longer than the lease
    hold.release().await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok("it had the lock to the end".to_owned())
}

async fn ask(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_axum_shuts_down() {
    let server = Server::start(&[]);
    let locker = Locker::new(Client::open(server.url()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = Router::new().route("/", get(report)).with_state(locker.clone());
    let (terminate, terminated) = oneshot::channel::<()>(); // as SIGTERM does
    let serves = tokio::spawn(async move {
        let (tell, left) = oneshot::channel();
        let stop = async move {
            let _ = terminated.await;
            // What waits for a lock ends now, so that the server need not wait for it.
            tokio::spawn(async move { tell.send(locker.drain(Duration::from_secs(20)).await) });
        };
        axum::serve(listener, app).with_graceful_shutdown(stop).await.unwrap();
        left.await.unwrap()
    });
    let works = tokio::spawn(ask(port));
    until("it works", || is_held(&server, "report"));
    let waits = tokio::spawn(ask(port));
    until("one waits", || server.ask::<Vec<redis::Value>>("RLOCK.QUEUES").len() == 1);
    terminate.send(()).unwrap();
    let refused = waits.await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    let done = works.await.unwrap();
    assert!(done.ends_with("it had the lock to the end"), "{done}");
    assert!(serves.await.unwrap().is_empty());
    assert!(!is_held(&server, "report"));
}
