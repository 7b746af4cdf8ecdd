//! Very many requests that wait for messages, over few connections: in which order they are served,
//! what memory they take, and what happens to those whose connection is killed.

use std::collections::VecDeque;

use redis::{PushKind, Value};
use rlock_testkit::{Server, Waiter, integer, items, text, until};

use crate::budgets::longest_step_us;
use crate::group_steps::one_of_five_rounds;
use crate::tell::waiting;

const CONNECTIONS: usize = 20;
const REQUESTS: usize = 5000;
/// This many requests of one connection are neighbors in the queue.
const BATCH: usize = 10;
/// The memory that a request may take if all names have 39 bytes.
const BYTES_EACH: i64 = 350;
const PATIENCE_MS: u64 = 20_000;

/// 39 bytes.
const KEY: &str = "lock:0f9a7c3e-5d0b-4c57-9c51-2f6c4c1f7a";

fn owner(number: usize) -> String {
    format!("0f9a7c3e-5d0b-4c57-9c51-{number:012}:17")
}

/// A RESP3 connection that sends requests and hears messages.
struct Shared {
    connection: Waiter,
    channel: String,
    replies: VecDeque<Value>,
    messages: VecDeque<String>,
}

impl Shared {
    fn connect(server: &Server, number: usize) -> Shared {
        let mut connection = Waiter::connect(server);
        connection.ask("HELLO 3");
        let channel = format!("to:0f9a7c3e-5d0b-4c57-9c51-{number:012}");
        connection.ask(&format!("SSUBSCRIBE {channel}"));
        Shared { connection, channel, replies: VecDeque::new(), messages: VecDeque::new() }
    }

    fn read_one(&mut self) {
        match self.connection.answer() {
            Value::Push { kind: PushKind::SMessage, data } => {
                self.messages.push_back(text(&data[1]));
            }
            reply => self.replies.push_back(reply),
        }
    }

    fn reply(&mut self) -> Value {
        while self.replies.is_empty() {
            self.read_one();
        }
        self.replies.pop_front().unwrap()
    }

    fn message(&mut self) -> String {
        while self.messages.is_empty() {
            self.read_one();
        }
        self.messages.pop_front().unwrap()
    }

    fn wait_with(&mut self, numbers: std::ops::Range<usize>) {
        let lines: Vec<String> = numbers.map(|number| self.line(number)).collect();
        self.connection.say_all(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        lines.iter().for_each(|_| assert_eq!(self.reply(), waiting()));
    }

    fn line(&self, number: usize) -> String {
        let (owner, channel) = (owner(number), &self.channel);
        let lease = "LEASE 3600000 DEPTH 1 BLOCK 3600000";
        format!("RLOCK.ACQUIRE {KEY} {owner} {lease} TELL {channel} {number}")
    }
}

#[test]
fn five_thousand_requests_of_twenty_connections_are_served_in_order() {
    let server = Server::start();
    let mut client = server.client();
    let mut all: Vec<Option<Shared>> =
        (0..CONNECTIONS).map(|number| Some(Shared::connect(&server, number))).collect();
    client.granted(&format!("RLOCK.ACQUIRE {KEY} holder LEASE 3600000"));
    // The buffers of each connection have their necessary size.
    for one in all.iter_mut().flatten() {
        let echo = |number| format!("ECHO {}", one.line(number).replace(' ', "-"));
        let lines: Vec<String> = (0..BATCH).map(echo).collect();
        one.connection.say_all(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        lines.iter().for_each(|_| drop(one.reply()));
    }
    let before = client.info_number("memory", "used_memory");
    let seat_of = |number: usize| number / BATCH % CONNECTIONS;
    for number in (0..REQUESTS).step_by(BATCH) {
        let one = all[seat_of(number)].as_mut().unwrap();
        one.wait_with(number..number + BATCH);
    }
    assert_eq!(client.counted("tells"), REQUESTS as i64);
    // Buffers shrink after a while.
    until(PATIENCE_MS, || {
        let each = (client.info_number("memory", "used_memory") - before) / REQUESTS as i64;
        println!("{each} bytes each");
        each <= BYTES_EACH
    });
    client.ask(&format!("RLOCK.RELEASE {KEY} holder"));
    let killed = 7;
    let (mut served, mut passed) = (0, 0);
    for number in 0..REQUESTS {
        if number == REQUESTS / 2 {
            let channel = all[killed].take().unwrap().channel;
            until(PATIENCE_MS, || {
                let listeners = client.ask(&format!("PUBSUB SHARDNUMSUB {channel}"));
                integer(&items(&listeners)[1]) == 0
            });
        }
        let Some(one) = all[seat_of(number)].as_mut() else {
            passed += 1;
            continue;
        };
        let message = one.message();
        assert!(message.starts_with(&format!("{number} token ")), "{number}: {message}");
        served += 1;
        let mut next = number + 1;
        while next < REQUESTS && next > REQUESTS / 2 && seat_of(next) == killed {
            next += 1;
        }
        // In one write, so that nothing comes in between.
        let lines =
            [format!("RLOCK.RELEASE {KEY} {}", owner(number)), format!("RLOCK.AWAIT {KEY} 0")];
        one.connection.say_all(&lines.each_ref().map(String::as_str));
        assert_eq!(one.reply(), Value::Int(0));
        let held = one.reply();
        match next < REQUESTS {
            true => assert_eq!(text(&items(&held)[1]), owner(next), "after {number}"),
            false => assert_eq!(held, Value::Nil, "after {number}"),
        }
    }
    assert_eq!((served + passed, client.counted("told")), (REQUESTS, served as i64));
    assert_eq!((client.counted("untold"), client.counted("tells")), (passed as i64, 0));
}

#[test]
fn ten_thousand_dead_requests_are_passed_in_short_steps() {
    one_of_five_rounds(round_of_ten_thousand_dead_requests);
}

fn round_of_ten_thousand_dead_requests(exceeded: &mut Vec<String>) {
    const DEAD: usize = 10_000;
    /// How much processor time a step may take.
    const STEP_US: u64 = 10_000;
    for mode in ["WRITE", "READ", "READ LIMIT 1"] {
        let server = Server::start();
        let mut client = server.client();
        let mut alive = Shared::connect(&server, 0);
        client.granted("RLOCK.ACQUIRE door holder LEASE 3600000");
        let line = |number| {
            format!("RLOCK.ACQUIRE door {} {mode} BLOCK 0 TELL nobody {number}", owner(number))
        };
        for number in (0..DEAD).step_by(100) {
            let lines: Vec<String> = (number..number + 100).map(line).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            assert!(client.all(&lines).iter().all(|reply| *reply == waiting()));
        }
        let last = format!("RLOCK.ACQUIRE door last BLOCK 0 TELL {} last", alive.channel);
        assert_eq!(alive.connection.ask(&last), waiting());
        let mut is_released = false;
        let us = longest_step_us(&mut client, |client| {
            if !std::mem::replace(&mut is_released, true) {
                assert_eq!(client.number("RLOCK.RELEASE door holder"), 0);
            }
            client.counted("tells") == 0
        });
        assert!(alive.message().starts_with("last token "));
        assert_eq!((client.counted("untold"), client.counted("told")), (DEAD as i64, 1));
        println!("{mode}: {:.1} ms", us as f64 / 1000.0);
        if us > STEP_US {
            exceeded.push(format!("{DEAD} dead, {mode}: {us} us in one step"));
        }
    }
}
