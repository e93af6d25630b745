"""Benchmarks: `compare` measures deltavc beside its peers; the others ask one question each."""
