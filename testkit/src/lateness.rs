//! How late something is, compared with how late the busy machine makes everything.

use std::time::Instant;

use crate::Client;

/// Measurements of how late something was, and, between them, of how late the server ended waits of
/// its own.
#[derive(Default)]
pub struct Lateness {
    late_us: Vec<u128>,
    server_late_us: Vec<u128>,
}

impl Lateness {
    /// Records one measurement, in microseconds.
    pub fn add(&mut self, late_us: u128) {
        self.late_us.push(late_us);
    }

    /// Waits a little with a command of the server's own that times out, and records how late it
    /// was.
    #[track_caller]
    pub fn compare(&mut self, client: &mut Client) {
        let began = Instant::now();
        client.refused("BLPOP nothing 0.005");
        self.server_late_us.push(began.elapsed().as_micros().saturating_sub(5_000));
    }

    /// Asserts that its median lateness is at most 3 ms plus twice that of the server's own waits.
    #[track_caller]
    pub fn assert_prompt(mut self) {
        let allowed = 3_000 + 2 * middle(&mut self.server_late_us);
        let late_us = middle(&mut self.late_us);
        assert!(late_us <= allowed, "{late_us} > {allowed} us: {:?}", self.late_us);
    }
}

fn middle(all: &mut [u128]) -> u128 {
    all.sort_unstable();
    all[all.len() / 2]
}
