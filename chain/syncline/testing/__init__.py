"""Fakes, conformance suites and real data that every test, benchmark and the demo share. Nothing in the library imports this."""
