//! Builds the C modules of `tests/planted`.

use std::path::PathBuf;
use std::process::Command;

use crate::say_not_seen;
use crate::server::repository;

/// A module that was built for one test, and is removed when it is dropped.
pub struct Compiled(PathBuf);

impl Compiled {
    /// Builds `tests/planted/NAME.c`; `None` if there is no C compiler.
    #[track_caller]
    pub fn of(name: &str) -> Option<Compiled> {
        if Command::new("cc").arg("--version").output().is_err() {
            say_not_seen(&format!("what another module meets ({name}): there is no C compiler"));
            return None;
        }
        let source = repository().join(format!("tests/planted/{name}.c"));
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let built = format!("{name}-{process}-{thread:?}.so");
        let built = Compiled(std::env::temp_dir().join(built));
        let mut compiler = Command::new("cc");
        compiler.arg("-shared").arg("-fPIC").arg("-o").arg(&built.0).arg(source);
        assert!(compiler.status().unwrap().success(), "{name}.c does not compile");
        Some(built)
    }

    /// The path of the built module.
    pub fn path(&self) -> std::path::Display<'_> {
        self.0.display()
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}
