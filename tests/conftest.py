"""What all tests share: no network, and the same random examples in every run."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Read by huggingface_hub when it is first imported.
os.environ["HF_HUB_OFFLINE"] = "1"

# Read by OpenMP when torch is first imported. Threads that spin while they wait make everything ten times slower
# where the tests share their cores with a server or with each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the other cores have tests of their own

# Where the tests run in the background of a script, Ctrl-C is ignored, and all processes that they start inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines are slow now and then, and a failure must come back in the next run.
settings.register_profile("headrace", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("headrace")
