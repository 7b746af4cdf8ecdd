"""The driver's own connection to a server: RESP2, blocking, nothing but the standard library."""

import socket


class Refused(Exception):
    """An error reply."""


class Connection:
    def __init__(self, address, timeout=10.0):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.file = self.socket.makefile("rb")

    def __call__(self, *words):
        self.send(*words)
        return self.reply()

    def send(self, *words):
        encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in encoded))

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise Refused(rest.decode())
        if kind == b":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"$":
            return self.file.read(size + 2)[:-2].decode(errors="replace")
        replies = []
        for _ in range(size):  # an error inside of an array is a value of it
            try:
                replies.append(self.reply())
            except Refused as refused:
                replies.append(refused)
        return replies

    def close(self):
        self.file.close()
        self.socket.close()


def ask(address, *words, timeout=10.0):
    """One command on a connection of its own."""
    connection = Connection(address, timeout)
    try:
        return connection(*words)
    finally:
        connection.close()


def section(address, name, timeout=10.0):
    """INFO name, as a dictionary."""
    lines = ask(address, "INFO", name, timeout=timeout).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def pairs(flat):
    return dict(zip(flat[::2], flat[1::2]))


def lock_info(address, key, timeout=2.0):
    """RLOCK.INFO as dictionaries."""
    info = pairs(ask(address, "RLOCK.INFO", key, timeout=timeout))
    for part in ("holders", "waiters"):
        info[part] = [pairs(row) for row in info[part]]
    return info


def slot(key):
    """The key's slot in a cluster."""
    tagged = key[key.find("{") + 1 :].split("}", 1)
    if "{" in key and len(tagged) == 2 and tagged[0]:
        key = tagged[0]
    crc = 0
    for byte in key.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ (0x1021 if crc & 0x8000 else 0)
    return (crc & 0xFFFF) % 16384
