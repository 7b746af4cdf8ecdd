//! RLOCK as its users see it: a real server with the built module, tested only from outside. All
//! subjects are in one program, so that it is linked once; `testkit/` starts the servers.

// A test fails by panicking, and its numbers are small.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

mod abuse;
mod acks;
mod acquire;
mod arrivals;
mod beside;
mod binary_and_limits;
mod blocked_sessions;
mod blocking;
mod budgets;
mod closing;
mod cluster;
mod cluster_failover;
mod cluster_load;
mod commands_and_acl;
mod configuration;
mod deadlock;
mod differential;
mod disk;
mod documented;
mod errors;
mod fates;
mod fates_of_keys;
mod force_and_queries;
mod fsync_before_reply;
mod gate;
mod group_acks;
mod group_crowds;
mod group_steps;
mod groups;
mod heard;
mod held_back;
mod hostile_effects;
mod hostile_payloads;
mod io_threads;
mod lease_end;
mod metrics;
mod notifications;
mod observers;
mod other_modules;
mod overdue;
mod pauses_and_roles;
mod pending_ends;
mod permits;
mod persistence;
mod promises;
mod queue_views;
mod read_write;
mod release;
mod renamed_client;
mod renew;
mod replication;
mod servers_own;
mod sessions;
mod several;
mod slot_moves;
mod slow_log;
mod take;
mod tell;
mod tell_crowds;
mod tell_fates;
mod tickets;
mod tokens;
mod transactions;
mod upgrades;
mod users;
