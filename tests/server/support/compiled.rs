//! Other modules, written in C, of `tests/planted`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::say_not_seen;

/// A module that was built for one test, and is gone with it.
pub struct Compiled(PathBuf);

impl Compiled {
    /// `tests/planted/NAME.c`; none where no C compiler is.
    #[track_caller]
    pub fn of(name: &str) -> Option<Compiled> {
        if Command::new("cc").arg("--version").output().is_err() {
            say_not_seen(&format!("what another module meets ({name}): there is no C compiler"));
            return None;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/planted/{name}.c"));
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let built = format!("{name}-{process}-{thread:?}.so");
        // The benchmarks, which start servers by this folder, too, have none from Cargo.
        let folder = option_env!("CARGO_TARGET_TMPDIR");
        let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from);
        let built = Compiled(folder.join(built));
        let mut compiler = Command::new("cc");
        compiler.arg("-shared").arg("-fPIC").arg("-o").arg(&built.0).arg(source);
        assert!(compiler.status().unwrap().success(), "{name}.c does not compile");
        Some(built)
    }

    /// Where it is.
    pub fn path(&self) -> std::path::Display<'_> {
        self.0.display()
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}
