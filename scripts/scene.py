#!/usr/bin/env python3
"""A busy server for a picture of a terminal. `scene.py COMMAND...` runs COMMAND with $RLOCK_URL while workers hold
locks, wait for them and hand them over. $RLOCK_SERVER and $RLOCK_MODULE name the server and the module."""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "clients/conformance"))
from resp import Connection, ask
from servers import Server, until


def works(address, key, owner, seconds, mode="WRITE"):
    """Acquires the lock again and again, and holds it for `seconds` each time, until the server ends."""
    connection = Connection(address, 60)
    try:
        while True:
            connection("RLOCK.ACQUIRE", key, owner, mode, "BLOCK", 0, "LEASE", 10000)
            time.sleep(seconds)
            connection("RLOCK.RELEASE", key, owner)
    except (OSError, ConnectionError):
        pass


def main(command):
    with tempfile.TemporaryDirectory() as folder:
        words = ["--save", "", "--notify-keyspace-events", "KEd", "--loadmodule", os.environ["RLOCK_MODULE"]]
        server = Server(os.environ["RLOCK_SERVER"], folder, words)
        one = server.address
        try:
            holder = Connection(one, 60)
            holder("RLOCK.ACQUIRE", "invoice:2041", "billing-3", "SESSION")
            for number in range(4):
                threading.Thread(target=works, args=(one, "invoice:2041", f"billing-{4 + number}", 1), daemon=True).start()
            crews = [("report:today", 8, 0.03, "WRITE"), ("thumbnails", 5, 0.012, "WRITE"), ("cart:77", 3, 0.05, "WRITE"), ("catalog", 4, 0.02, "READ")]
            for key, size, seconds, mode in crews:
                for number in range(size):
                    threading.Thread(target=works, args=(one, key, f"{key.split(':')[0]}-{number + 1}", seconds, mode), daemon=True).start()
            threading.Thread(target=works, args=(one, "catalog", "editor", 0.1), daemon=True).start()
            until("they wait", lambda: ask(one, "RLOCK.PLACE", "invoice:2041", "billing-7") is not None)
            subprocess.run(command, env={**os.environ, "RLOCK_URL": f"redis://{one}"}, check=True)
        finally:
            server.kill()


main(sys.argv[1:])
