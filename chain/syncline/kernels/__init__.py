"""Loops over units, compiled by numba with the GIL released. Each has a plain NumPy twin in `reference`.

They know integers and frame geometry only: no store, no format, no dtype semantics. Importing this package loads numba.
"""
