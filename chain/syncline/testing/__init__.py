"""Fakes, conformance suites and real data shared by tests, benchmarks and the demo; the library never imports it."""
