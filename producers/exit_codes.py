"""Exit codes of the command line, as ``headrace --help`` states them."""

from __future__ import annotations

OK = 0
FAILED_ROWS = 1
BAD_INPUT = 2
NO_BROKER = 3
NO_WORKER = 4
LEDGER_MISMATCH = 5
STARTING = 6
DRAINING = 7
QUEUE_FULL = 8
ACCESS_DENIED = 9
INTERRUPTED = 130

TABLE = """\b
Exit codes:
  0   all rows answered
  1   finished, and some rows failed
  2   bad usage or bad input
  3   no Redis answers
  4   no worker serves the model
  5   the output file belongs to other input
  6   health: a worker is starting
  7   health: a worker is draining, and no other is ready
  8   too many jobs wait, or Redis is nearly full; try again later
  9   the tenant or its token is refused
  130 interrupted; the same command goes on
"""
