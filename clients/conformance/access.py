"""How a runner's clients authenticate: as a user of docs/operations.md, with exactly the rules of that page, and with
TLS."""

import pathlib
import re
import shutil
import subprocess

OPERATIONS = pathlib.Path(__file__).parents[2] / "docs/operations.md"


class Access:
    """How all clients authenticate. Without a user, they are the default user."""

    def __init__(self, user=None, tls=False):
        self.user, self.tls, self.folder = user, tls, None

    def prepare(self, folder):
        """Writes the files that the servers read. The driver itself stays the default user, without TLS."""
        self.folder = pathlib.Path(folder) / "access"
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.tls:
            self._make_certificates()

    @property
    def opening(self):
        """The fields of the request `open`."""
        login = {"user": self.user, "password": f"{self.user}-secret"} if self.user else {}
        return login | ({"tls": True} if self.tls else {})

    @property
    def prefix(self):
        """The prefix of the keys that the user may lock."""
        return f"{self.user}:" if self.user else ""

    @property
    def environment(self):
        """rustls and OpenSSL read from these variables which authority to trust; the other runners verify nothing."""
        return {"SSL_CERT_FILE": str(self.folder / "ca.crt")} if self.tls else {}

    def server_words(self, port, is_cluster):
        """The settings of a server whose TLS port is `port`."""
        words = []
        if self.user:
            rules = documented("")
            if is_cluster:
                rules = [f"{rule} {cluster_rules()}" if rule.startswith("user app ") else rule for rule in rules]
            path = self.folder / f"users-{port}.acl"
            path.write_text("\n".join(["user default on nopass ~* &* +@all", *rules, ""]))
            words += ["--aclfile", str(path)]
        if self.tls:
            words += [word for name, value in self._tls_settings(port) for word in (f"--{name}", value)]
            words += ["--tls-cluster", "yes"] if is_cluster else []
        return words

    def sentinel_lines(self, port):
        """The settings of a Sentinel, as lines of its configuration."""
        lines = documented(" of Sentinel") if self.user else []
        return lines + ([f"{name} {value}" for name, value in self._tls_settings(port)] if self.tls else [])

    def _tls_settings(self, port):
        files = {"cert-file": "server.crt", "key-file": "server.key", "ca-cert-file": "ca.crt"}
        settings = [("tls-port", str(port)), ("tls-auth-clients", "no"), ("tls-replication", "yes")]
        return settings + [(f"tls-{name}", str(self.folder / file)) for name, file in files.items()]

    def _make_certificates(self):
        if shutil.which("openssl") is None:
            raise SystemExit("--tls needs the program openssl")
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        for words in (
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=tests"],
            ["req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost", "-addext", names],
            ["x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.crt", "-days", "2", "-copy_extensions", "copy"],
        ):
            subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)


def documented(whose):
    """The lines of the page's block of users for `whose` servers: "" or " of Sentinel"."""
    page = OPERATIONS.read_text()
    found = re.search(r"```(?:conf|text)\n((?:user [^\n]*\n)+)```", page.split(f"\n### The users{whose}\n")[1])
    return found[1].splitlines()


def cluster_rules():
    """The rules that the page adds for an application that uses a Cluster."""
    return re.search(r"A client of a Cluster[^`]*`([^`]*)`", OPERATIONS.read_text())[1]
