"""Without a GPU the kernels run in Triton's interpreter: it must be asked for before Triton is first imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
