/** Locks on a Redis or Valkey server with the RLOCK module. */
module rlock {
    exports rlock;
}
