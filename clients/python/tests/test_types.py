"""Mistakes that mypy --strict finds, and correct code that it accepts."""

import subprocess
import sys

HEAD = "import redis\nimport redis.asyncio\nimport rlock\nimport rlock.asyncio\n"
MISTAKES = {
    'rlock.Lock(redis.Redis(), "k", timeout=10)': "call-arg",
    'rlock.Lock(redis.Redis(), "k", wait="ten")': "arg-type",
    'rlock.Lock(redis.Redis(), "k").acquire("ten")': "arg-type",
    'rlock.Lock(redis.Redis(), "k").acquire(timeout=10)': "call-arg",
    'rlock.Lock(redis.Redis(), "k", lease="30")': "arg-type",
    'rlock.Lock(redis.Redis(), "k", 10)': "call-arg",
    'rlock.Lock(redis.asyncio.Redis(), "k")': "arg-type",
    'rlock.asyncio.Lock(redis.Redis(), "k")': "arg-type",
    'rlock.Permit(redis.Redis(), "k", "four")': "arg-type",
    'rlock.Locks(redis.Redis(), listener=print)': "arg-type",
    'rlock.Locks(redis.Redis()).all("a", "b", wait="ten")': "arg-type",
    'rlock.Locks(redis.Redis()).all("a", upgrade=True)': "call-arg",
    'rlock.Lock(redis.Redis(), "k").acquire().release()': "union-attr",
}
RIGHT = '''
def use(client: redis.Redis) -> int:
    lock = rlock.Lock(client, "k", wait=10, lease=5.5, acks=1, maxqueue=3)
    if (hold := lock.acquire(wait=None)) is not None:
        hold.extend(10)
        hold.release()
    with lock as hold, rlock.Locks.of(client).all("a", rlock.read("b"), wait=0) as holds:
        return hold.token + holds.token


async def later(client: "redis.asyncio.Redis") -> bool:
    async with rlock.asyncio.Lock(client, "k", cancel=True) as hold:
        return hold.held
'''


def mypy(tmp_path, text):
    file = tmp_path / "user.py"
    file.write_text(HEAD + text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout


def test_mistakes_are_found_and_nothing_else(tmp_path):
    found = mypy(tmp_path, "\n".join(MISTAKES) + RIGHT)
    lines = {}
    for line in found.splitlines():
        if ": error:" in line:
            lines.setdefault(int(line.split(":")[1]), []).append(line)
    assert sorted(lines) == [number for number, _ in enumerate(MISTAKES, HEAD.count("\n") + 1)], found
    for number, (code, kind) in enumerate(MISTAKES.items(), HEAD.count("\n") + 1):
        assert f"[{kind}]" in lines[number][0], (code, lines[number])
