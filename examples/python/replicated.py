"""A grant that counts only once a replica has it. Run by itself it shows on the server at 127.0.0.1:$PORT, which has no
replica, that such a grant is given back."""

import os

import redis


def acquire_on_replica(client, key, owner, replicas=1, timeout_ms=200):
    """The token once so many replicas have the grant. None: the wait was over, or they did not answer in time."""
    # WAIT speaks of what its own connection has written.
    with client.client() as connection:
        token = connection.execute_command("RLOCK.ACQUIRE", key, owner, "BLOCK", 5000, "DEPTH", 1)
        if token is not None and connection.wait(replicas, timeout_ms) < replicas:
            connection.execute_command("RLOCK.RELEASE", key, owner, "WRITE", "DEPTH", 0)
            token = None
    return token


if __name__ == "__main__":
    server = redis.Redis(port=int(os.environ["PORT"]), socket_timeout=60)
    assert acquire_on_replica(server, "py:replicated", "ann") is None
    assert not server.exists("py:replicated"), "the grant was kept"
    assert acquire_on_replica(server, "py:replicated", "ann", replicas=0) > 0
    assert server.execute_command("RLOCK.RELEASE", "py:replicated", "ann", "WRITE", "DEPTH", 0) == 0
    print("a grant that no replica has is given back")
