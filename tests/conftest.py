"""Settings for every test: hypothesis draws the same examples in CI each time, and never judges by the clock. Without a GPU kernels run
in Triton's interpreter, which must be asked for before whatever test comes first imports Triton."""

from __future__ import annotations

import os

import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
settings.register_profile("here", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
