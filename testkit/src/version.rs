//! The version of a server.

use std::fmt;

/// Which server this is. Valkey calls itself Redis 7.2.4 as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Redis, major and minor version.
    Redis(u32, u32),
    /// Valkey, major and minor version.
    Valkey(u32, u32),
}

impl fmt::Display for Version {
    /// Its name and its minor version.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, major, minor) = match self {
            Self::Redis(major, minor) => ("Redis", major, minor),
            Self::Valkey(major, minor) => ("Valkey", major, minor),
        };
        write!(to, "{name} {major}.{minor}")
    }
}

impl Version {
    /// Whether the server's ACL categories hold commands of modules, too.
    pub fn puts_modules_into_categories(self) -> bool {
        self >= Version::Redis(7, 2)
    }

    /// Whether a module can make an ACL category of its own.
    pub fn has_module_categories(self) -> bool {
        self.is_since([7, 4], [8, 0])
    }

    /// Whether `ACL CAT` names commands of modules.
    pub fn lists_module_commands(self) -> bool {
        self.is_since([8, 0], [8, 1])
    }

    /// Whether it is this Redis, this Valkey, or a later one of its kind.
    pub fn is_since(self, redis: [u32; 2], valkey: [u32; 2]) -> bool {
        match self {
            Version::Redis(major, minor) => [major, minor] >= redis,
            Version::Valkey(major, minor) => [major, minor] >= valkey,
        }
    }
}
