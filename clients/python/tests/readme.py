"""Runs what README.md shows, block after block, on the server at $PORT."""

import os
import pathlib
import re

readme = pathlib.Path(__file__).parent.parent / "README.md"
text = readme.read_text().replace("6380", os.environ["PORT"])
blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
names = {}
for number, block in enumerate(blocks, 1):
    exec(compile(block, f"README.md, block {number}", "exec"), names)
assert len(blocks) > 5, "the blocks were not found"
