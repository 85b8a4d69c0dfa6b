"""A polling worker of the timers' application, in a process of its own, until its input is closed."""

from __future__ import annotations

import sys

from benchmarks.polling_worker import make, poll
from benchmarks.timers_app import TASKS

if __name__ == "__main__":
    poll(make(sys.argv[1], TASKS))
