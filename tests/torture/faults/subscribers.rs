//! CLIENT KILL of those who have subscribed: of one, or of all at once. Whoever waits for a message
//! subscribes and asks again; nobody else notices.

use super::{Alone, Blow, Fault, Kind, Shard, id_of};
use crate::actor::Site;
use crate::history::FULL_PROMISE;
use rlock_testkit::Client;

pub const KIND: Kind = Kind {
    name: "subscribers",
    start: || Box::new(Subscribers::start()),
    promise: FULL_PROMISE,
    every_ms: 20,
    in_processes: false,
    left_out: &[],
};

struct Subscribers {
    alone: Alone,
    client: Client,
}

impl Subscribers {
    fn start() -> Subscribers {
        let alone = Alone::with(&[]);
        Subscribers { client: alone.0.client(), alone }
    }
}

impl Fault for Subscribers {
    fn site(&self) -> Site {
        self.alone.site()
    }

    fn strike(&mut self, blow: &mut Blow<'_>) {
        if blow.rng.bool() {
            self.client.ask("CLIENT KILL TYPE pubsub");
            return;
        }
        let list = self.client.text("CLIENT LIST TYPE pubsub");
        let ids: Vec<i64> = list.lines().filter_map(id_of).collect();
        if let Some(id) = blow.rng.choice(ids) {
            self.client.ask(&format!("CLIENT KILL ID {id}"));
        }
    }

    fn shards(&mut self) -> Vec<Shard<'_>> {
        self.alone.shards()
    }
}
