"""Benchmarks, one script a question: ``python -m bench.NAME``. No part of the package."""
