//! Failovers, one after the other, as fast as possible. Clients acquire as many locks as they can;
//! the primary loses its replicas, continues for up to 100 ms, and dies; another server takes over.
//! It must have everything that was confirmed by `ACKS`: the same owner, mode, token and level, and
//! a deadline that is no earlier; no stranger gets the lock before that. The same rounds have
//! clients that send `WAIT`, and the control group: clients that have nothing confirmed, and lose
//! some holds.

mod apart;
mod asker;
pub mod claims;
pub mod grace;
mod judge;
mod net;
pub mod record;
pub mod rivals;
mod roles;
mod shards;
pub mod skew;
mod stage;
mod tally;
pub mod variants;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use fastrand::Rng;

use apart::Apart;
use asker::{Asker, Notes, Site};
use claims::{Claim, conflicts, overlaps, parts};
use judge::Loss;
use record::{Failover, Record};
use rivals::Rivals;
use shards::Shards;
use skew::{Clock, Skewed, shown_ms};
use stage::{Servers, Stage};
pub use tally::Tally;
use variants::{Trouble, Variant, Way};

use crate::clock::{Stop, ms, now_ns};
use rlock_testkit::{Server, Waiter, now_ms};

/// How long the load lasts before the faults begin.
const LOAD_MS: std::ops::Range<u64> = 120..350;
/// How long the primary waits for acknowledgments.
const PATIENCE_MS: [u32; 4] = [30, 100, 2000, 2000];

/// Which claims must be kept. If all must be, the check has to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    ToThoseWhoMakeSure,
    ToAll,
}

/// This many failovers of one kind, on servers of its own.
pub fn run(
    variant: &'static Variant,
    failovers: u32,
    promise: Promise,
    rng: &mut Rng,
    record: &mut Record,
    rivals: &mut Rivals,
) -> Tally {
    let mut tally = Tally::of(variant.name);
    let begun_ns = now_ns();
    let mut servers = match servers_of(variant, rng) {
        Ok(servers) => servers,
        Err(why) => {
            println!("left out: {}: {why}", variant.name);
            return tally;
        }
    };
    for number in 0..failovers {
        servers.make_whole();
        Round { variant, number, promise }.run(&mut *servers, rng, &mut tally, record, rivals);
    }
    tally.took_ms = ms(now_ns() - begun_ns);
    tally
}

/// Fails if this machine cannot have such servers; the error says why.
fn servers_of(variant: &Variant, rng: &mut Rng) -> Result<Box<dyn Servers>, String> {
    Ok(match (variant.way, variant.trouble) {
        (Way::Cluster, _) => Box::new(Shards::of_six()),
        (Way::Apart, _) => Box::new(Apart::of(variant)?),
        (_, Trouble::Clocks) => Box::new(Skewed::of(variant, rng.fork())?),
        _ => Box::new(Stage::of(variant)),
    })
}

/// The time by this server's clock, in unix milliseconds.
fn time_at(server: &Server) -> i64 {
    shown_ms(&mut Waiter::may_connect(&server.socket()).unwrap())
}

struct Round {
    variant: &'static Variant,
    number: u32,
    promise: Promise,
}

impl Round {
    fn run(
        &self,
        servers: &mut dyn Servers,
        rng: &mut Rng,
        tally: &mut Tally,
        record: &mut Record,
        rivals: &mut Rivals,
    ) {
        let site = Arc::new(self.site(servers, rng));
        rivals.connect(|| servers.door(), &site.prefix);
        rivals.begin();
        let clients = self.clients(&site, rng);
        let stop = Stop::default();
        stop.within(rng.u64(LOAD_MS));
        servers.trouble(self.variant.trouble, rng);
        let fall = servers.fall(rng);
        site.stop.set();
        let fallen_ms = now_ms() - (ms(now_ns() - fall.at_ns) as i64);
        let notes = clients.into_iter().map(|client| client.join().unwrap()).collect();
        tally.failovers += 1;
        let mut claims = self.claims(notes, fallen_ms, &site.clock, tally);
        let ours = claims.len();
        rivals.add_claims(fallen_ms, &mut claims);
        let failover = Failover {
            variant: self.variant.name,
            round: self.number,
            fall: fall.to_string(),
            fallen_ms: site.clock.latest_ms(fallen_ms, fallen_ms),
            judged_from_ms: time_at(servers.primary()),
            asked_ms: now_ms(),
        };
        let cut_short = claims.iter().filter(|claim| failover.cuts_short(claim));
        cut_short.for_each(|claim| tally.cut_short(claim));
        let lasting = claims.iter().filter(|claim| claim.until_ms > failover.judged_from_ms);
        lasting.for_each(|claim| tally.count(claim));
        rivals.ask(servers.primary().tcp_port(), &claims);
        let mut losses = self.judge(servers, &claims[..ours], &failover, tally);
        let theirs = rivals.losses(&claims, |wrong| tally.complain(std::iter::once(wrong)));
        theirs.iter().for_each(|loss| tally.lose(&claims[loss.claim]));
        losses.extend(theirs);
        record.add(&failover, &claims, &losses);
    }
}

impl Round {
    fn site(&self, servers: &dyn Servers, rng: &mut Rng) -> Site {
        let Variant { acks, is_floor, .. } = *self.variant;
        let clock = servers.clock();
        let primary = servers.primary();
        let mut client = primary.client();
        let (ms, floor) = (rng.choice(PATIENCE_MS).unwrap(), if is_floor { acks } else { 0 });
        client.ask(&format!("CONFIG SET rlock.acks-timeout-ms {ms} rlock.acks {floor}"));
        let (socket, stop, keys) = (primary.socket(), Stop::default(), AtomicU64::new(0));
        let prefix = format!("{}:{}", servers.tag(), self.number);
        Site { socket, prefix, acks, is_floor, clock, stop, keys }
    }

    fn clients(&self, site: &Arc<Site>, rng: &mut Rng) -> Vec<JoinHandle<Notes>> {
        let mut clients = Vec::new();
        for (number, (sort, role)) in roles::all(self.variant.control).into_iter().enumerate() {
            let name = format!("c{number}");
            let asker = Asker::new(sort, name, rng.u64(..), site.clone());
            clients.push(std::thread::spawn(move || asker.live(role)));
        }
        clients
    }

    /// Their claims, and the contradictions among them.
    fn claims(
        &self,
        notes: Vec<Notes>,
        fallen_ms: i64,
        clock: &Clock,
        tally: &mut Tally,
    ) -> Vec<Claim> {
        let (mut claims, mut stays) = (Vec::new(), Vec::new());
        for mut note in notes {
            tally.told += note.told;
            tally.no_acks += note.no_acks;
            tally.no_replicas += note.no_replicas;
            tally.complain(note.wrong.drain(..));
            stays.append(&mut note.stays);
            claims.extend(note.claims_at(fallen_ms, clock));
        }
        tally.complain(overlaps(&stays).into_iter());
        tally.complain(conflicts(&claims).into_iter());
        claims
    }

    /// Finds and counts those of the module's claims that were lost.
    fn judge(
        &self,
        servers: &dyn Servers,
        claims: &[Claim],
        failover: &Failover<'_>,
        tally: &mut Tally,
    ) -> Vec<Loss> {
        let losses = judge::losses(servers.primary(), claims);
        let lost: Vec<usize> = losses.iter().map(|loss| loss.claim).collect();
        tally.complain(parts(claims, &lost, time_at(servers.primary())).into_iter());
        for Loss { claim, why } in &losses {
            let claim = &claims[*claim];
            tally.lose(claim);
            let is_promised = claim.sort.is_promised() || self.promise == Promise::ToAll;
            if is_promised {
                tally.complain(std::iter::once(format!("{claim}: {why}; {failover}")));
            }
        }
        losses
    }
}
