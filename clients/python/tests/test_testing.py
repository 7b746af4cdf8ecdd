"""What users test with: a real server with the module."""

import os
import pathlib
import subprocess
import sys

import pytest

import rlock
from rlock.testing import Server

pytest_plugins = ["pytester", "rlock.testing"]


def test_a_server_of_its_own_starts_and_ends():
    with Server("--maxclients", "50") as server, server.client() as client:
        assert "50" in client.config_get("maxclients").values()
        assert rlock.Lock(client, "k").acquire().token > 0
        server.kill()
        server.start()
        with server.client() as other:
            assert other.exists("k") == 0
        folder = server.folder
    assert server.process.poll() is not None and not pathlib.Path(folder).exists()


def test_two_servers_are_two(rlock_server):
    with Server("--requirepass", "secret") as other:
        assert rlock_server.port != other.port
        for server, password in (rlock_server, None), (other, "secret"):
            with server.client(password=password) as client, rlock.Lock(client, "k", wait=0, owner="me"):
                pass


def test_what_is_missing_is_said(monkeypatch):
    with pytest.raises(RuntimeError, match="RLOCK_MODULE"):
        Server(module="/nowhere/librlock.so")
    with pytest.raises(RuntimeError, match="the server did not start.*(?s:.*)nonsense"):
        Server("--nonsense", "yes")
    for name in "RLOCK_SERVER", "PATH":
        monkeypatch.setenv(name, "")
    with pytest.raises(RuntimeError, match="RLOCK_SERVER"):
        Server()


def test_a_project_of_users(pytester):
    """As the README shows it."""
    pytester.makeconftest('pytest_plugins = ["rlock.testing"]')
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    block = readme.split("```python test\n")[1].split("```")[0]
    pytester.makepyfile(block + "\n\ndef test_that_it_is_empty(rlock_server):\n    assert redis.Redis.from_url(rlock_server.url).dbsize() == 0\n")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_without_pytest():
    script = "import sys; sys.modules['pytest'] = None; import rlock.testing; s = rlock.testing.Server(); print(s.client().ping()); s.stop()"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, check=True).stdout
    assert said == "True\n"
