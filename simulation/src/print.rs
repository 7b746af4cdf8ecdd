//! Everything on which the future depends, as a number: two worlds with the same number continue
//! alike. Times are relative to now, and tokens are replaced by their rank.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};

use rlock_core::{Change, Kind, Volatile};

use crate::client::{Actor, Pipe};
use crate::history::Item;
use crate::keyspace::Slot;
use crate::link::Link;
use crate::machines::{Machine, START_US};
use crate::printer::Printer;
use crate::server::{Conn, Server};
use crate::world::World;

impl World {
    /// A hash of the state with 64 bits. All clocks must agree with the world's.
    pub fn fingerprint(&self) -> u64 {
        let mut tokens: BTreeSet<u64> = BTreeSet::new();
        for machine in &self.machines {
            for (_, _, slot) in machine.server.keys.iter() {
                let holds = slot.lock().into_iter().flat_map(rlock_core::Lock::holds);
                tokens.extend(holds.map(|(_, _, hold)| hold.token.get()));
            }
        }
        self.laws.tokens_of_promises(&mut tokens);
        let mut printer = Printer {
            hasher: DefaultHasher::new(),
            now_ms: (START_US + self.us) / 1000,
            tokens: tokens.into_iter().collect(),
        };
        for machine in &self.machines {
            print_machine(&mut printer, machine);
        }
        for actor in &self.actors {
            print_actor(&mut printer, actor);
        }
        self.laws.print(&mut printer);
        printer.hasher.finish()
    }
}

fn print_machine(to: &mut Printer, machine: &Machine) {
    to.add((machine.is_up, machine.was_primary, machine.server.is_primary));
    print_server(to, &machine.server);
    to.add(machine.link.is_some());
    machine.link.iter().for_each(|link| print_link(to, link));
}

fn print_link(to: &mut Printer, link: &Link) {
    to.add((link.primary, link.state as u8, link.sync.is_some(), link.queue.len()));
    to.add((&link.acks, link.heard));
    link.sync.iter().for_each(|sync| to.add(sync.history()));
    link.queue.iter().for_each(|item| print_item(to, item));
}

fn print_item(to: &mut Printer, item: &Item) {
    to.add(item.at);
    let effects = item.effects();
    if effects.is_empty() {
        return to.add(&*item.words);
    }
    for change in effects.iter().flat_map(|effect| &effect.changes) {
        match change {
            Change::Granted { owner, mode, token, deadline } => {
                to.add(owner);
                to.mode(*mode);
                to.token(token.get());
                to.moment(deadline.get());
            }
            Change::Updated { token, depth, deadline } => {
                to.add(depth);
                to.token(token.get());
                to.moment(deadline.get());
            }
            Change::Ended { token, by } => {
                to.token(token.get());
                to.add(*by as u8);
            }
        }
    }
}

fn print_server(to: &mut Printer, server: &Server) {
    to.add(&server.history);
    for (db, key, slot) in server.keys.iter() {
        to.add((db, key));
        to.moment(slot.expires_at.unwrap_or(u64::MAX - 1));
        print_slot(to, slot);
        let volatile = server.state.manager.volatile(db, key);
        volatile.into_iter().for_each(|volatile| print_memory(to, volatile));
    }
    for (client, conn) in &server.conns {
        print_conn(to, client.get(), conn);
        to.add((&conn.channels, &conn.queued));
    }
    for tell in server.tells.all.values() {
        to.add((tell.client.get(), &tell.to.channel, &tell.to.id, tell.is_in_line));
        to.add((&tell.waiting.asked.key, tell.waiting.asked.owner.as_bytes()));
        to.add(!tell.waiting.pending.is_empty());
    }
    let timers = &server.timers;
    to.add((timers.closing, timers.is_watching));
    for (at_ms, call) in &timers.calls {
        to.add(*call as u8);
        to.moment(*at_ms);
    }
    to.moment(timers.alarm.map_or(u64::MAX - 1, rlock_core::EpochMs::get));
}

fn print_slot(to: &mut Printer, slot: &Slot) {
    for (owner, mode, hold) in slot.lock().into_iter().flat_map(rlock_core::Lock::holds) {
        to.add((owner, hold.depth));
        to.mode(mode);
        to.token(hold.token.get());
        to.moment(hold.deadline.get());
    }
}

fn print_memory(to: &mut Printer, volatile: &Volatile) {
    for (entry, is_turn) in volatile.queue.iter() {
        to.add((entry.owner.as_bytes(), entry.kind == Kind::Ticket, is_turn, entry.upgrade));
        to.add((entry.depth, entry.session().map(|client| client.get())));
        to.mode(entry.mode);
        to.moment(entry.ends_at.map_or(u64::MAX - 1, rlock_core::EpochMs::get));
    }
    to.add(volatile.sessions.len());
}

fn print_conn(to: &mut Printer, client: u64, conn: &Conn) {
    to.add((client, conn.db, conn.waiting.is_some()));
    if let Some(waiting) = &conn.waiting {
        to.add((&waiting.asked.key, waiting.asked.owner.as_bytes(), waiting.is_answered));
        to.add((!waiting.pending.is_empty(), waiting.others.len()));
        waiting.observes.into_iter().for_each(|known| to.token(known));
    }
}

fn print_actor(to: &mut Printer, actor: &Actor) {
    to.add((actor.pipe.is_some(), actor.hung.len()));
    actor.pipe.iter().chain(&actor.hung).for_each(|pipe| print_pipe(to, pipe));
}

fn print_pipe(to: &mut Printer, pipe: &Pipe) {
    to.add((pipe.client.get(), pipe.node, &pipe.to, pipe.from.len(), pipe.unanswered()));
}
