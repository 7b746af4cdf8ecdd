//! The server versions on which every test of this version was run, and the bugs of servers that no
//! module can avoid. docs/servers.md describes them.

use crate::ffi::Ctx;

/// The servers on which every test of this version was run.
const TESTED: [(&str, &[&str]); 2] = [
    ("Redis", &["7.0", "7.2", "7.4", "8.0", "8.2", "8.6"]),
    ("Valkey", &["7.2", "8.0", "8.1", "9.1"]),
];

/// A bug in some versions of a server that an ordinary client can trigger with one command.
struct Fault {
    server: &'static str,
    /// The affected series, each with its first patch release without the bug; `None` if none is
    /// known.
    series: &'static [(&'static str, Option<u32>)],
    /// What happens, and what helps other than an upgrade.
    what: &'static str,
}

const USE_AFTER_FREE: &str = "has CVE-2026-23479 (unblocking a client may use freed memory) and \
                              CVE-2026-25243 (RESTORE), unless its package was patched";

const FAULTS: [Fault; 3] = [
    Fault {
        server: "Redis",
        series: &[
            ("7.2", Some(14)),
            ("7.4", Some(9)),
            ("8.0", None),
            ("8.2", Some(6)),
            ("8.4", Some(3)),
            ("8.6", Some(3)),
        ],
        what: USE_AFTER_FREE,
    },
    Fault {
        server: "Valkey",
        series: &[("7.2", Some(13)), ("8.0", Some(9)), ("8.1", Some(7)), ("9.0", Some(4))],
        what: USE_AFTER_FREE,
    },
    Fault {
        server: "Redis",
        series: &[("8.6", None)],
        what: "may crash if MEMORY USAGE names a lock and mem_allocator is libc; deny that command \
               with the ACL rule -memory|usage",
    },
];

/// Logs a warning for each known bug of this server, and if the module was not tested on it.
pub fn warn(ctx: &Ctx) {
    let (name, version) = match ctx.server_info(c"server", c"valkey_version") {
        Some(version) => ("Valkey", version),
        None => match ctx.server_info(c"server", c"redis_version") {
            Some(version) => ("Redis", version),
            None => return,
        },
    };
    let Some((series, patch)) = version.rsplit_once('.') else { return };
    for (tested_name, tested) in TESTED {
        if tested_name == name && !tested.contains(&series) {
            let tested = tested.join(", ");
            ctx.warn(&format!(
                "this version was not tested on {name} {version}; it was tested on {name} \
                 {tested}"
            ));
        }
    }
    let patch = patch.parse().unwrap_or(0);
    for fault in FAULTS.iter().filter(|fault| fault.server == name) {
        let Some((_, fixed)) = fault.series.iter().find(|(affected, _)| *affected == series) else {
            continue;
        };
        let what = fault.what;
        match fixed {
            None => ctx.warn(&format!("{name} {version} {what}")),
            Some(fixed) if patch < *fixed => ctx.warn(&format!(
                "{name} {version} {what}; {series}.{fixed} is the first release without it"
            )),
            Some(_) => {}
        }
    }
}
