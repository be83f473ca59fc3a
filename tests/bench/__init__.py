"""Tests of the benchmarks that are programs of their own."""
