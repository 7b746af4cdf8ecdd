"""For how long threads were ready, but no processor ran them."""

import glob
import pathlib


def kept_waiting(*pids):
    """For how long each thread of these processes was ready but did not run, in ms."""
    waited = {}
    for pid in pids:
        for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
            try:
                waited[path] = int(pathlib.Path(path).read_text().split()[1]) / 1e6
            except (OSError, IndexError):
                pass  # the thread has ended
    return waited


def waits(before, after):
    """For how long each thread waited between two results of `kept_waiting`."""
    return [ms - before.get(thread, 0) for thread, ms in after.items()]
