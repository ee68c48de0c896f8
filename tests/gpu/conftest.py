"""What tests of kernels share. Without a GPU they run in Triton's interpreter (tests/conftest.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture
def only_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter a kernel fails that reads or writes anything but the tensors which it was handed."""
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    spans: list[tuple[int, int]] = []

    def checked(ptrs: Any, mask: Any) -> None:
        places, size = ptrs.data[mask.data], ptrs.get_element_ty().primitive_bitwidth // 8
        inside = np.zeros(places.shape, np.bool_)
        for first, end in spans:
            inside |= (places >= first) & (places + size <= end)
        if not inside.all():
            raise AssertionError(
                f"{int((~inside).sum())} places of {size} bytes lie in none of the tensors that the kernel has"
            )

    class Checked(interpreter.InterpreterBuilder):
        def create_masked_load(self, ptrs: Any, mask: Any, *others: Any) -> Any:
            checked(ptrs, mask)
            return super().create_masked_load(ptrs, mask, *others)

        def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *others: Any) -> Any:
            checked(ptrs, mask)
            return super().create_masked_store(ptrs, value, mask, *others)

        def create_atomic_rmw(self, op: Any, ptr: Any, value: Any, mask: Any, *others: Any) -> Any:
            checked(ptr, mask)
            return super().create_atomic_rmw(op, ptr, value, mask, *others)

    class Handed(interpreter.GridExecutor):
        def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
            handed = [arg for arg in (*args_dev, *kwargs.values()) if isinstance(arg, torch.Tensor)]
            spans[:] = [(arg.data_ptr(), arg.data_ptr() + arg.numel() * arg.element_size()) for arg in handed]
            return super()._init_args_hst(args_dev, kwargs)

    monkeypatch.setattr(interpreter.interpreter_builder, "__class__", Checked)
    monkeypatch.setattr(interpreter, "GridExecutor", Handed)
