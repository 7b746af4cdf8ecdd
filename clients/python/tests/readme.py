"""Runs what README.md shows, block after block, on the server at $PORT."""

import os
import pathlib
import re

readme = pathlib.Path(__file__).parent.parent / "README.md"
blocks = re.findall(r"^```python\n(.*?)^```", readme.read_text(), re.M | re.S)
names = {"PORT": int(os.environ["PORT"])}
for number, block in enumerate(blocks, 1):
    exec(compile(block, f"README.md, block {number}", "exec"), names)
assert len(blocks) > 5, "the blocks were not found"
