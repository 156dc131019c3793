"""Fixtures for all tests: nothing reaches the network, and no test depends on the size of the terminal."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("COLUMNS", "100")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Test processes side by side would fight for the cores, and measure each other's threads.
    os.environ.setdefault("TOUCHSTONE_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
