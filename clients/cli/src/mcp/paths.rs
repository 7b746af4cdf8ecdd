//! Which keys a claim of paths locks: WRITE for each path, READ for each folder above it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::servers::Trouble;

/// The folder whose paths are claimed.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    /// # Errors
    /// If there is no such folder.
    pub fn new(folder: &Path) -> Result<Root, Trouble> {
        let found = folder.canonicalize();
        found.map(Root).map_err(|error| format!("{}: {error}", folder.display()))
    }

    /// The folder's own name.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.0.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_default()
    }

    /// The path relative to the folder, with all symbolic links resolved, so that a file has one
    /// name; empty for the folder itself. The path need not exist.
    ///
    /// # Errors
    /// If it is outside of the folder, or not UTF-8.
    pub fn relative(&self, path: &str) -> Result<String, Trouble> {
        let mut whole = self.0.clone();
        for part in Path::new(path).components() {
            match part {
                Component::ParentDir => {
                    // As the system resolves paths: `..` is relative to the target of a link.
                    whole = resolved(&whole);
                    whole.pop();
                }
                part => whole.push(part), // an absolute path begins anew
            }
        }
        let whole = resolved(&whole);
        let Ok(below) = whole.strip_prefix(&self.0) else {
            return Err(format!("'{path}' is outside of {}", self.0.display()));
        };
        let text = below.to_str().ok_or_else(|| format!("'{path}' is not UTF-8"))?;
        Ok(text.to_owned())
    }
}

/// The path with all links followed, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    let mut begin = path;
    loop {
        if let Ok(mut found) = begin.canonicalize() {
            found.extend(rest.iter().rev());
            return found;
        }
        match (begin.parent(), begin.file_name()) {
            (Some(parent), Some(name)) => {
                rest.push(name);
                begin = parent;
            }
            _ => return path.to_owned(),
        }
    }
}

/// The folders above a path, the nearest first; the last one is the root, which is empty.
pub fn above(path: &str) -> impl Iterator<Item = &str> {
    let mut now = path;
    std::iter::from_fn(move || {
        now = folder_of(now)?;
        Some(now)
    })
}

fn folder_of(path: &str) -> Option<&str> {
    match path.rsplit_once('/') {
        Some((folder, _)) => Some(folder),
        None if path.is_empty() => None,
        None => Some(""),
    }
}

/// Whether a claim of `claimed` covers `path`.
#[must_use]
pub fn covers(claimed: &str, path: &str) -> bool {
    claimed == path || above(path).any(|folder| folder == claimed)
}

/// The paths without those that another one covers.
#[must_use]
pub fn merged(paths: &BTreeSet<String>) -> BTreeSet<String> {
    let is_covered = |path: &String| above(path).any(|folder| paths.contains(folder));
    paths.iter().filter(|path| !is_covered(path)).cloned().collect()
}

/// The locks for these paths, each with whether it is locked in mode WRITE.
#[must_use]
pub fn locks(paths: &BTreeSet<String>) -> BTreeMap<String, bool> {
    let paths = merged(paths);
    let mut locks: BTreeMap<String, bool> = BTreeMap::new();
    for path in &paths {
        locks.insert(path.clone(), true);
        for folder in above(path) {
            locks.entry(folder.to_owned()).or_insert(false);
        }
    }
    locks
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn set(paths: &[&str]) -> BTreeSet<String> {
        paths.iter().map(|&path| path.to_owned()).collect()
    }

    #[test]
    fn a_path_is_written_and_its_folders_are_read() {
        let found = locks(&set(&["src/a/x.rs", "src/b", "src/b/y.rs", "README.md"]));
        let found: Vec<(&str, bool)> = found.iter().map(|(path, w)| (path.as_str(), *w)).collect();
        let wanted = [
            ("", false),
            ("README.md", true),
            ("src", false),
            ("src/a", false),
            ("src/a/x.rs", true),
            ("src/b", true),
        ];
        assert_eq!(found, wanted);
        assert_eq!(
            locks(&set(&["", "src/a"])).into_iter().collect::<Vec<_>>(),
            [(String::new(), true)]
        );
    }

    #[test]
    fn a_folder_covers_what_is_in_it() {
        assert!(covers("src", "src/a.rs") && covers("", "src") && covers("src", "src"));
        assert!(!covers("src", "srcs/a.rs") && !covers("src/a.rs", "src"));
    }

    #[test]
    fn a_path_has_one_name() {
        let folder = std::env::temp_dir().join(format!("rlock-paths-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("src/deep")).unwrap();
        std::os::unix::fs::symlink("src/deep", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("/", folder.join("out")).unwrap();
        let root = Root::new(&folder).unwrap();
        let whole = folder.canonicalize().unwrap().join("src/a.rs");
        for (path, name) in [
            ("src/a.rs", "src/a.rs"),
            ("./src//a.rs", "src/a.rs"),
            ("src/deep/../a.rs", "src/a.rs"),
            ("new/../src/a.rs", "src/a.rs"),
            (whole.to_str().unwrap(), "src/a.rs"),
            ("link/b.rs", "src/deep/b.rs"),
            ("link/../a.rs", "src/a.rs"),
            ("new/er/c.rs", "new/er/c.rs"),
            (".", ""),
            ("src/..", ""),
        ] {
            assert_eq!(root.relative(path).as_deref(), Ok(name), "{path}");
        }
        for path in ["..", "../x", "/etc/passwd", "out/etc", "src/../../x"] {
            assert!(root.relative(path).is_err(), "{path}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
