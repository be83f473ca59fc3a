"""Tests of the engine: no queue, no server."""
