//! What tasks and threads share: every public type and every future. A type that cannot be shared
//! would not compile in a server's handlers, which are spawned tasks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::marker::PhantomData;
use std::path::Path;

use redis::Client;
use rlock_client::{
    All, Any, Counts, Election, Error, Event, Hold, IfItFails, Leader, Locker, Loss, Observer,
    Once, One, Request, blocking,
};

/// Compiles only if these may be sent to another thread, and used by several at a time.
fn is_shared<T: Send + Sync + 'static>(_: PhantomData<T>) {}

/// Compiles only if a runtime may move it between its threads.
fn is_spawned<F: Future + Send>(_: F) {}

macro_rules! shared {
    ($($name:ty),* $(,)?) => { [$({
        is_shared(PhantomData::<$name>);
        stringify!($name)
    }),*] };
}

#[test]
fn every_public_type_can_be_shared_by_tasks() {
    let checked = shared![
        All,
        Any,
        Counts,
        Election,
        Error,
        Event,
        Hold,
        IfItFails,
        Leader,
        Locker,
        Loss,
        Observer,
        Once,
        One,
        Request,
        blocking::All,
        blocking::Election,
        blocking::Hold,
        blocking::Locker,
        blocking::Request,
    ];
    let mut checked: BTreeSet<String> = checked.map(|name| name.replace(' ', "")).into();
    #[cfg(feature = "opentelemetry")]
    is_shared(PhantomData::<rlock_client::otel::Telemetry>);
    checked.insert("otel::Telemetry".to_owned());
    #[cfg(feature = "testing")]
    is_shared(PhantomData::<rlock_client::testing::Server>);
    checked.insert("testing::Server".to_owned());
    assert_eq!(checked, public_types());
}

/// The public types of the source that other crates can name.
fn public_types() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = BTreeSet::new();
    for file in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (file.path(), file.file_name().into_string().unwrap());
        let prefix = match name.as_str() {
            "blocking.rs" => "blocking::",
            "otel.rs" => "otel::",
            "testing.rs" => "testing::",
            _ => "",
        };
        if !path.is_file() {
            continue; // the machines are private
        }
        for line in fs::read_to_string(&path).unwrap().lines() {
            let rest = line.strip_prefix("pub struct ").or(line.strip_prefix("pub enum "));
            let Some(rest) = rest else { continue };
            let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
            all.extend(rest.get(..end).map(|name| format!("{prefix}{name}")));
        }
    }
    all
}

/// Never called: it only has to compile.
#[allow(dead_code, reason = "the compiler checks it")]
fn every_future_can_be_spawned(locker: Locker, hold: Hold, loss: Loss, mut observer: Observer) {
    is_spawned(locker.lock("k").acquire());
    is_spawned(locker.lock("k").try_acquire());
    is_spawned(locker.all(["a", "b"]).unwrap().acquire());
    is_spawned(locker.election("e").campaign().acquire());
    is_spawned(locker.election("e").leader());
    is_spawned(locker.close());
    is_spawned(locker.drain(std::time::Duration::ZERO));
    is_spawned(loss.lost());
    is_spawned(loss.ended());
    is_spawned(observer.next());
    is_spawned(hold.lost());
    is_spawned(hold.release());
}

#[test]
fn an_iterator_of_leaders_can_be_sent() {
    fn is_sent<T: Send>(_: T) {}
    let client = Client::open("redis://127.0.0.1:1").unwrap();
    is_sent(blocking::Locker::new(client).unwrap().election("e").observe());
}
