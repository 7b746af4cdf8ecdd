package rlock.redisson;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.HostAndPort;

/** How the addresses in Redisson's configuration are interpreted. */
class ServersTest {
    @Test
    void anAddressLeadsToItsHost() {
        assertEquals(new HostAndPort("redis_master", 7000), Servers.address("redis://redis_master:7000"));
        assertEquals(new HostAndPort("redis_master", 6379), Servers.address("rediss://redis_master"));
        assertEquals(new HostAndPort("10.0.0.1", 7000), Servers.address("valkey://10.0.0.1:7000/"));
        assertEquals(new HostAndPort("[::1]", 7000), Servers.address("redis://[::1]:7000"));
    }

    @Test
    void anAddressWithoutAHostIsRefused() {
        for (String address : List.of("redis://:7000", "redis:///0", "localhost:7000", "redis://host:port", "")) {
            var refused = assertThrows(IllegalArgumentException.class, () -> Servers.address(address), address);
            assertEquals("the address " + address + " is not redis://HOST:PORT", refused.getMessage());
        }
    }

    @Test
    void credentialsInAnAddressAreRefusedAndNotShown() {
        for (String address : List.of("redis://user:secret@host:7000", "redis://:sec#ret@host", "redis://:secret@redis_master")) {
            var refused = assertThrows(IllegalArgumentException.class, () -> Servers.address(address), address);
            assertTrue(refused.getMessage().startsWith("the configuration has credentials in an address:"), refused.getMessage());
        }
    }
}
