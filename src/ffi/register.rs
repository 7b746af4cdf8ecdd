//! Registration of settings and commands.

use std::ffi::CStr;

use redis_module_macros_internals::api;
use rlock_core::grammar::{Access, Command};

use super::command_info::Info;
use super::*;

impl Ctx {
    /// Reads the module's settings from the server's configuration, once all are registered.
    pub fn load_settings(&self) -> Result<(), String> {
        // SAFETY: context, at load.
        match unsafe { there(raw::RedisModule_LoadConfigs)(self.0) } {
            0 => Ok(()),
            _ => Err("a setting is out of its range".into()),
        }
    }

    /// Registers a command, described by `info`.
    pub fn register_command<H: Handler>(&self, command: &Command) -> Result<(), String> {
        extern "C" fn entry<H: Handler>(
            ctx: *mut raw::RedisModuleCtx,
            argv: *mut *mut raw::RedisModuleString,
            argc: c_int,
        ) -> c_int {
            // SAFETY: the server passes `argc` strings that live as long as this call.
            H::run(&Ctx(ctx), &Argv(unsafe { slice(argv, argc) }));
            OK
        }
        let info = Info::new(command);
        // In lower case, like the server's own commands in its statistics.
        let name = c_string(&command.name.to_ascii_lowercase());
        let flags = c_string(command.flags);
        // For several keys, the server asks for their positions.
        let is_first = command.access != Access::Keyless && !command.has_several_keys();
        let at = c_int::from(is_first);
        // SAFETY: context, at load; the server copies the strings and the description.
        let described = unsafe {
            let create = there(raw::RedisModule_CreateCommand);
            create(self.0, name.as_ptr(), Some(entry::<H>), flags.as_ptr(), at, at, at);
            let registered = there(raw::RedisModule_GetCommand)(self.0, name.as_ptr());
            !registered.is_null()
                && there(raw::RedisModule_SetCommandInfo)(registered, info.as_ptr()) == 0
        };
        if !described {
            return Err(format!("the server refuses the command {}", command.name));
        }
        // Since Redis 7.2 and 7.4; where they are missing, ACL rules name the commands instead.
        if self.add_category(c"rlock").is_ok() {
            let _ = self.set_categories(&name, &c_string(&format!("{} rlock", command.acl)));
        } else {
            let _ = self.set_categories(&name, &c_string(command.acl));
        }
        Ok(())
    }

    api!(
        [RedisModule_AddACLCategory],
        fn add_category(&self, name: &CStr) {
            // SAFETY: context, at load; the server copies the name. The category may exist already.
            unsafe { RedisModule_AddACLCategory(self.0, name.as_ptr()) };
        }
    );

    api!(
        [RedisModule_SetCommandACLCategories],
        fn set_categories(&self, command: &CStr, categories: &CStr) {
            // SAFETY: context, at load; the command was registered just now.
            unsafe {
                let command = there(raw::RedisModule_GetCommand)(self.0, command.as_ptr());
                RedisModule_SetCommandACLCategories(command, categories.as_ptr());
            }
        }
    );
}
