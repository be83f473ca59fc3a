"""Benchmarks: each prints a table, or with ``--json`` one JSON object. None is part of the tests."""
