"""Syncline keeps fleets of RL rollout engines on the trainer's newest weights.

This package is the library: versions, planning, wire format, codecs, kernels and store. It knows no Kubernetes and, imported by itself,
loads neither torch nor numba.
"""

__version__ = "0.1.0"
