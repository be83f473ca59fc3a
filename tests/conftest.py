"""What all tests share: no network, and the same random examples in every run."""

from __future__ import annotations

import os

from hypothesis import settings

# Read by huggingface_hub when it is first imported.
os.environ["HF_HUB_OFFLINE"] = "1"

# Shared machines are slow now and then, and a failure must come back in the next run.
settings.register_profile("headrace", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("headrace")
