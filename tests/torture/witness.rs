//! A witness that sends PING all the time. If even that is not answered, nobody was served: the
//! server was down, or other work kept the machine busy. A lost wake-up does not keep the server
//! from answering, so it is not mistaken for that.

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::actor::Site;
use crate::clock::{Stop, now_ns, ns};
use crate::history::{Event, Mark};

const EVERY_MS: u64 = 5;
/// The longest gap that counts as an ordinary round trip.
const LATE_MS: u64 = 40;

pub struct Witness {
    stop: Arc<Stop>,
    thread: JoinHandle<Vec<Event>>,
}

impl Witness {
    pub fn start(site: Arc<Site>) -> Witness {
        let stop = Arc::new(Stop::default());
        let until = stop.clone();
        Witness { stop, thread: std::thread::spawn(move || watch(&site, &until)) }
    }

    /// When nobody was served.
    pub fn end(self) -> Vec<Event> {
        self.stop.set();
        self.thread.join().unwrap()
    }
}

fn watch(site: &Site, stop: &Stop) -> Vec<Event> {
    let mut events = Vec::new();
    let mut connection: Option<redis::Connection> = None;
    let mut from_ns = now_ns();
    while !stop.is_set() {
        let is_answered = match &mut connection {
            Some(connection) => redis::cmd("PING").exec(connection).is_ok(),
            None => false,
        };
        if is_answered {
            let to_ns = now_ns();
            if to_ns - from_ns > ns(LATE_MS) {
                events.push(Event { mark: Mark::Outage, from_ns, to_ns });
            }
            stop.within(EVERY_MS);
            from_ns = to_ns;
        } else {
            let url = (site.url_of)("", 0);
            connection = redis::Client::open(url).unwrap().get_connection().ok();
            stop.within(1);
        }
    }
    events
}
