"""Where a client of redis-py leads to: how its connections are made, and which server has a key."""

from __future__ import annotations

import functools
import inspect
import re
import ssl
from typing import Any, Optional, Union

from redis import exceptions
from redis.crc import key_slot
from redis.sentinel import MasterNotFoundError

from ._core import REPLY, raw
from ._errors import KINDS, Broken, Refused

Address = tuple[str, int]

#: What redis-py turns the first word of an error into, for versions that do not keep it.
CODES: list[tuple[type[Exception], str]] = [
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.AuthenticationError, "NOAUTH"),
]

#: Errors of a server that is not a primary, or no longer one.
NO_PRIMARY = ("READONLY", "UNBLOCKED", "MASTERDOWN")


#: TLS errors about a connection that has just broken.
BREAKS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def translated(error: Exception, place: Any = None) -> Exception:
    """Converts an exception of redis-py: to Broken if a retry may help, to Refused if not."""
    if isinstance(error, (exceptions.BusyLoadingError, exceptions.AuthenticationError)):
        return refused(error)
    where = f" ({place[0]}:{place[1]})" if place else ""
    if (problem := _untrusted(error)) is not None:
        return Refused("TLS", f"no TLS connection to the server: {problem}{where}")
    if isinstance(error, MasterNotFoundError) and _all_refuse(str(error)):
        return Refused("SENTINEL", f"no Sentinel answers this client: {error}")
    if isinstance(error, exceptions.RedisClusterException) and "not enabled" not in str(error):
        return Broken(f"{type(error).__name__}: {error}")
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, OSError)):
        return Broken(f"{type(error).__name__}: {error}{where}")
    if isinstance(error, exceptions.InvalidResponse):
        return Refused("PROTOCOL", f"what answers is no Redis server: {error}{where}")
    if isinstance(error, exceptions.ResponseError):
        return refused(error)
    return Refused("CLUSTER", str(error)) if isinstance(error, exceptions.RedisClusterException) else error


def _untrusted(error: Optional[BaseException]) -> Optional[ssl.SSLError]:
    """Why there can be no TLS connection."""
    seen: set[int] = set()  # a chain may lead back into itself
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ssl.SSLError) and not isinstance(error, (*BREAKS, TimeoutError)) and "timed out" not in str(error):
            return error if "EOF" not in str(error) else None
        error = error.__cause__ or error.__context__
    return None


def _all_refuse(text: str) -> bool:
    """Whether all Sentinels have refused, judging by redis-py's list of their answers."""
    said = re.findall(r" - (\w+)\(", text)
    return bool(said) and all(each in ("AuthenticationError", "NoPermissionError", "AuthenticationWrongNumberOfArgsError") for each in said)


def refused(error: Exception) -> Refused:
    """Converts an error reply of the server."""
    text = str(error)
    code = next((code for kind, code in CODES if isinstance(error, kind)), None) or getattr(error, "status_code", None)
    if code == "NOAUTH" and "uthentication required" not in text:
        code = "WRONGPASS"
    if code is None or code == "ERR":
        code = text.split(" ", 1)[0] if text[:1].isupper() else "ERR"
        if "unknown command" in text and "RLOCK." in text:
            text = f"the server has not loaded the RLOCK module: {text}"
        if "syntax error at 'TELL'" in text:
            text = f"the RLOCK module of the server is too old for this package, it does not know TELL: {text}"
    elif not text.startswith(code):
        text = f"{code} {text}"
    return KINDS.get(code, Refused)(code, text)


@functools.lru_cache(1024)  # most words of a request are those of the last one
def bulk(word: Union[str, int]) -> bytes:
    data = raw(word) if isinstance(word, str) else b"%d" % word
    return b"$%d\r\n%b\r\n" % (len(data), data)


def packed(words: list[Any]) -> bytes:
    """A request in the protocol's format, in half of the time that redis-py takes."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


class Route:
    """Which server has a key. Remembers redirections: a Cluster redirects with -MOVED."""

    def __init__(self, client: Any, is_async: bool):
        self.is_cluster = hasattr(client, "get_primaries") or type(client).__name__ == "RedisCluster"
        self.client, self.is_async = client, is_async
        self.has_slots = self.is_cluster
        self.master: Optional[Address] = None
        self.slots: dict[int, Address] = {}
        self.seeds: list[Address] = []
        self.next_seed = 0
        self.told: dict[Optional[Address], list[str]] = {}  # what each server says that it is
        pool = None if self.is_cluster else client.connection_pool
        self.sentinel = pool if hasattr(pool, "get_master_address") else None
        self.moves = self.is_cluster or self.sentinel is not None
        if self.is_cluster:
            self.db = 0
        else:
            self.take_pool(pool)
            self.db = int(self.kwargs.get("db") or 0)

    @property
    def question(self) -> list[str]:
        """The command that asks a server for its identity."""
        return ["CLUSTER", "SLOTS"] if self.is_cluster else ["INFO", "server"]

    def identities(self, said: Any) -> list[str]:
        """The identities in its answer; if it refused, those derived from the client's settings."""
        if self.is_cluster and said:
            return [f"node {row[2][2]}" for row in said]
        if said:
            self.has_slots = "_mode:cluster" in said  # the client may have been given the address of a node
            return [f"run {line[7:]} {self.db}" for line in said.splitlines() if line.startswith("run_id:")]
        if self.is_cluster:
            return [f"at {host}:{port}" for host, port in self.seeds]
        if self.sentinel is not None:
            return [f"sentinel {self.sentinel.service_name} {self.db}"]
        return ["at " + ":".join(str(self.kwargs.get(k)) for k in ("host", "port", "path", "db"))]

    def take_pool(self, pool: Any) -> None:
        """Takes the client's settings for connections, except timeouts and retries, which this package handles itself."""
        kind = pool.connection_class
        if self.sentinel is not None:  # the plain connection below the one that asks Sentinel
            kind = next(k for k in kind.__mro__ if k.__name__ in ("SSLConnection", "Connection"))
        self._take(kind, pool.connection_kwargs)

    def _take(self, kind: Any, kwargs: dict[str, Any]) -> None:
        dropped = ("connection_pool", "redis_connect_func", "host", "port", "retry_on_error", "parser_class", "himport_registry")
        keep = {k: v for k, v in kwargs.items() if k not in dropped and not k.startswith(("maint_", "orig_", "_"))}
        if "path" not in keep:
            keep["host"], keep["port"] = kwargs.get("host", "localhost"), kwargs.get("port", 6379)
        keep.update(decode_responses=True, encoding="utf-8", encoding_errors="surrogateescape", protocol=2)
        keep.update(health_check_interval=0, retry_on_timeout=False, retry=self._no_retry())
        if "path" not in keep:
            keep.update(socket_keepalive=keep.get("socket_keepalive", True))
        else:  # a unix socket has nothing of the kind
            keep = {k: v for k, v in keep.items() if not k.startswith("socket_keepalive") and k != "socket_type"}
        # This limits the handshake. Each read has its own time limit.
        keep.update(socket_timeout=None if self.is_async else REPLY)
        keep.update(socket_connect_timeout=keep.get("socket_connect_timeout") or REPLY)
        if _knows(kind, "maint_notifications_config"):
            from redis.maint_notifications import MaintNotificationsConfig

            keep["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
        self.kind, self.kwargs = kind, keep

    def _no_retry(self) -> Any:
        from redis.backoff import NoBackoff

        if self.is_async:
            from redis.asyncio.retry import Retry as AsyncRetry

            return AsyncRetry(NoBackoff(), 0)
        from redis.retry import Retry

        return Retry(NoBackoff(), 0)

    def take_cluster(self) -> None:
        """Takes the seeds of a Cluster, if its client knows them."""
        primaries = self.client.get_primaries()
        cache = self.client.nodes_manager.slots_cache
        self.slots = {slot: (nodes[0].host, int(nodes[0].port)) for slot, nodes in cache.items() if nodes}
        node = primaries[0]
        if self.is_async:
            self._take(node.connection_class, node.connection_kwargs)
        else:
            self.take_pool(self.client.get_redis_connection(node).connection_pool)
        self.seeds = [(node.host, int(node.port)) for node in primaries]  # last: it says that the rest is there

    def connection(self, address: Optional[Address]) -> Any:
        return self.kind(**(self.kwargs if address is None else {**self.kwargs, "host": address[0], "port": address[1]}))

    def of(self, key: str) -> Optional[Address]:
        """The server of the key; None for the only address that the client was given."""
        if not self.is_cluster:
            return self.master
        if address := self.slots.get(key_slot(raw(key))):
            return address
        self.next_seed += 1
        return self.seeds[self.next_seed % len(self.seeds)]

    def moved(self, text: str, asked: Optional[Address]) -> Address:
        """Records `… slot host:port`, and returns the address."""
        slot, place = text.split()[-2:]
        host, port = place.rsplit(":", 1)
        address = (host or (asked or ("", 0))[0], int(port))
        remap = getattr(self.client, "address_remap", None) or getattr(getattr(self.client, "nodes_manager", None), "address_remap", None)
        if remap:
            address = remap(address)
        if not text.startswith("ASK"):
            self.slots[int(slot)] = address
            if address not in self.seeds:
                self.seeds.append(address)
        return address

    def redirected(self, refused: Refused, asked: Optional[Address]) -> Optional[Address]:
        """The target of -MOVED or -ASK; otherwise None, and the server that refused is not asked first next time."""
        if self.is_cluster and refused.code in ("MOVED", "ASK"):
            return self.moved(str(refused), asked)
        if refused.code in (*NO_PRIMARY, "LOADING"):
            self.forget(asked)
        return None

    def forget(self, address: Optional[Address]) -> None:
        """That server did not answer: next time, asks another server for the primary, and for its identity."""
        self.told.pop(address, None)
        self.master = None
        # Works on a copy: another thread may record a slot meanwhile.
        self.slots = {slot: at for slot, at in self.slots.copy().items() if at != address}


def _knows(kind: Any, name: str) -> bool:
    return any(name in inspect.signature(k.__init__).parameters for k in kind.__mro__ if "__init__" in vars(k))
