"""Tests of the kernels against their plain twins."""
