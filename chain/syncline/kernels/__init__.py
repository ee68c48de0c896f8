"""Loops over units, compiled: digests, differences, scatters.

Every kernel has its plain NumPy twin in `reference`, and tests compare the two bit for bit. Kernels hold no lock and no
state, release the GIL, start no thread (the caller slices) and check no content: positions and frames come from code that
has checked them. They know nothing of codecs, stores or files.
"""
