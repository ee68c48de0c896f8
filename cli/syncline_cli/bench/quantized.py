"""FP8, NVFP4 and MXFP4 views of a model's matrices, quantized as engines' checkpoints are: codes, and a scale a block.

All else stays BF16. What is rounded is given as FP32; where that comes from a BF16 view, a scale stands still until the view's own bits
move, and then moves by as much as they do, while scales of FP32 masters move a little at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from syncline_cli.bench.views import Tensor, View, bfloat16

Values = NDArray[np.float32]
Codes = NDArray[np.uint8]

FP8_BLOCK = 128
NVFP4_BLOCK, MXFP4_BLOCK = 16, 32
QUANTIZED = "_proj.weight"
"""Ending of the names of what is quantized; embeddings, norms and biases are not."""

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E4M3 = np.array(
    [(1 + m / 8 if e else m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1], np.float32
)
"""Values of the codes, ascending; the last code of E4M3 is NaN."""


class Quantization(StrEnum):
    """How a matrix is served."""

    FP8 = "fp8"
    """E4M3 codes, an FP32 scale a block of 128 x 128."""
    FP8_POWERS = "fp8-powers"
    """The same with scales that are powers of two."""
    NVFP4 = "nvfp4"
    """E2M1 codes, two a byte; an E4M3 scale for 16, an FP32 scale a tensor."""
    MXFP4 = "mxfp4"
    """E2M1 codes; an E8M0 scale for 32."""


def quantized_view(weights: Mapping[str, Values], how: Quantization) -> View:
    """The view that an engine would serve of these weights."""
    tensors: dict[str, Tensor] = {}
    for name, values in weights.items():
        if name.endswith(QUANTIZED):
            tensors |= {f"{name}{ending}": tensor for ending, tensor in _QUANTIZE[how](values).items()}
        else:
            tensors[name] = Tensor("BF16", values.shape, bfloat16(values).reshape(-1))
    return View.of(tensors)


def e4m3(values: Values) -> Codes:
    """Codes of the nearest E4M3 values, ties to even, beyond the greatest the greatest."""
    return _nearest(values, _E4M3) | np.signbit(values).astype(np.uint8) << np.uint8(7)


def e2m1(values: Values) -> Codes:
    """Likewise for E2M1: one code a byte."""
    return _nearest(values, _E2M1) | np.signbit(values).astype(np.uint8) << np.uint8(3)


def _nearest(values: Values, ascending: Values) -> Codes:
    middles = (ascending[1:] + ascending[:-1]) / 2
    size = np.abs(values)
    found = np.searchsorted(middles, size).astype(np.uint8)  # of a tie the lower
    tied = size == middles[np.minimum(found, middles.size - 1)]
    return found + (tied & (found % 2 == 1))


def _fp8(values: Values) -> dict[str, Tensor]:
    return _fp8_with(values, _greatest_in_tiles(values) / np.float32(_E4M3[-1]))


def _fp8_powers(values: Values) -> dict[str, Tensor]:
    return _fp8_with(values, np.exp2(np.ceil(np.log2(_greatest_in_tiles(values) / _E4M3[-1]))))


def _fp8_with(values: Values, scales: Values) -> dict[str, Tensor]:
    rows, columns = values.shape
    spread = scales.repeat(FP8_BLOCK, 0)[:rows].repeat(FP8_BLOCK, 1)[:, :columns]
    return {
        "": Tensor("F8_E4M3", values.shape, e4m3(values / spread).reshape(-1)),
        "_scale_inv": Tensor("F32", scales.shape, scales.view(np.uint32).reshape(-1)),
    }


def _nvfp4(values: Values) -> dict[str, Tensor]:
    greatest = _greatest_in_rows(values, NVFP4_BLOCK)
    whole = np.float32(greatest.max() / (_E2M1[-1] * _E4M3[-1]))
    scale_codes = e4m3(greatest / _E2M1[-1] / whole)
    steps = np.maximum(_E4M3[scale_codes] * whole, np.finfo(np.float32).tiny)
    return {
        "": _packed(values, steps, NVFP4_BLOCK),
        "_scale": Tensor("F8_E4M3", scale_codes.shape, scale_codes.reshape(-1)),
        "_scale_2": Tensor("F32", (), np.array([whole]).view(np.uint32)),
    }


def _mxfp4(values: Values) -> dict[str, Tensor]:
    exponents = np.floor(np.log2(_greatest_in_rows(values, MXFP4_BLOCK))) - 2  # E2M1's greatest is 1.5 * 2^2
    return {
        "": _packed(values, np.exp2(exponents), MXFP4_BLOCK),
        "_scale": Tensor("F8_E8M0", exponents.shape, (exponents + 127).astype(np.uint8).reshape(-1)),
    }


def _packed(values: Values, steps: Values, block: int) -> Tensor:
    codes = e2m1(values / steps.repeat(block, 1)).reshape(-1, 2)
    return Tensor("F4", values.shape, codes[:, 0] | codes[:, 1] << 4)


def _greatest_in_tiles(values: Values) -> Values:
    rows, columns = (-(-n // FP8_BLOCK) for n in values.shape)
    padded = np.zeros((rows * FP8_BLOCK, columns * FP8_BLOCK), np.float32)
    padded[: values.shape[0], : values.shape[1]] = np.abs(values)
    return _positive(padded.reshape(rows, FP8_BLOCK, columns, FP8_BLOCK).max((1, 3)))


def _greatest_in_rows(values: Values, block: int) -> Values:
    return _positive(np.abs(values).reshape(values.shape[0], -1, block).max(2))


def _positive(greatest: Values) -> Values:
    return np.maximum(greatest, np.float32(2.0**-100))  # a block of zeros has a scale too


_QUANTIZE: dict[Quantization, Callable[[Values], dict[str, Tensor]]] = {
    Quantization.FP8: _fp8,
    Quantization.FP8_POWERS: _fp8_powers,
    Quantization.NVFP4: _nvfp4,
    Quantization.MXFP4: _mxfp4,
}
