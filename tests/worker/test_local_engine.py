"""The engine's thread: it loads what it runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from headrace.engine import Engine, ModelError
from headrace.worker.local_engine import LocalEngine

from .services import tiny_config


def test_the_thread_that_runs_an_engine_has_loaded_it(tiny_model: Path) -> None:
    """A second thread that computes would bring a second team of OpenMP threads, and slow both down."""
    threads = []

    def load() -> Engine:
        threads.append(threading.current_thread())
        return Engine.load(tiny_config(tiny_model))

    host = LocalEngine(load)
    assert [thread.name for thread in threads] == ["headrace-engine"]
    assert threads[0].is_alive()
    assert (host.model, host.max_model_len) == ("tiny", 4096)
    host._thread.stop()
    assert not threads[0].is_alive()


def test_what_loading_raises_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        LocalEngine(lambda: Engine.load(tiny_config(tmp_path / "nowhere")))
