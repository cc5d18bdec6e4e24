"""Processes of this machine."""

import os
import sys
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether there is such a process; a zombie, which only waits until its exit status is read, is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's: the number was given away again
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # no /proc here; or it ended just now
        return sys.platform != "linux"
