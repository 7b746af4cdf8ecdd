//! The spaces of owner names. A server may have two addresses, and a Cluster has many, so a server
//! is identified by what it reports about itself: all its names belong to one space.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use crate::util::lock;

/// The space of each name. A space is called by the first name of the first server in it.
fn known() -> &'static Mutex<HashMap<String, String>> {
    static KNOWN: OnceLock<Mutex<HashMap<String, String>>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default)
}

/// The space of the server with these names.
pub(crate) fn space_of(names: Vec<String>) -> String {
    let mut known = lock(known());
    let found = names.iter().find_map(|name| known.get(name).cloned());
    let space = found.or_else(|| names.first().cloned()).unwrap_or_default();
    add(&mut known, names, &space);
    space
}

/// Adds names to a space.
pub(crate) fn join(names: Vec<String>, space: &str) {
    add(&mut lock(known()), names, space);
}

fn add(known: &mut HashMap<String, String>, names: Vec<String>, space: &str) {
    for name in names {
        known.entry(name).or_insert_with(|| space.to_owned());
    }
}
