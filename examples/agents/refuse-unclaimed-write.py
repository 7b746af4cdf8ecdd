#!/usr/bin/env python3
"""A hook that refuses an agent's write to a file that the agent has not claimed with `rlock mcp`.

The editor runs it before each write, with the call as JSON on standard input. Exit code 2 refuses the write, and the agent
reads the reason. If the hook cannot find out who has claimed the file, it refuses the write as well.
"""

import json
import os
import subprocess
import sys


def main():
    call = json.load(sys.stdin).get("tool_input", {})
    path = call.get("file_path") or call.get("notebook_path")
    root = os.path.realpath(os.environ.get("CLAUDE_PROJECT_DIR", "."))
    if path is None or not is_inside(root, os.path.join(root, path)):
        return 0
    if not os.environ.get("RLOCK_AGENT"):
        return refuse("RLOCK_AGENT is not set: start the editor with a name for this agent")
    try:
        checked = subprocess.run(["rlock", "mcp", "--root", root, "--check", path], timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return refuse(f"rlock cannot say who has claimed {path}: {error}")
    return 2 if checked.returncode else 0


def is_inside(root, path):
    return os.path.commonpath([root, os.path.realpath(path)]) == root


def refuse(why):
    print(why, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
