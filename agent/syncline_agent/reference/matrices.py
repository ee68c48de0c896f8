"""Products with weights that stay as they are stored: what is FP8 or NVFP4 in memory is widened for one product, and
forgotten.

A matrix looks at the memory it is given each time, so bits that were changed in place are those of the next product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from syncline_agent.reference.parameters import Parameters
from syncline_agent.reference.slicing import Format, Matrix

Wide = Callable[[], torch.Tensor]
"""A weight in float32, made when asked for."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Linear:
    """x @ weight.T + bias, the result cut where `rows` of one tensor end and those of the next begin."""

    def __init__(self, weights: Sequence[Wide], bias: Sequence[torch.Tensor | None], rows: Sequence[int] = ()) -> None:
        """Several `weights`, each with its bias, give a result each; one may be cut by `rows`."""
        self._weights, self._bias, self._rows = weights, bias, list(rows)

    def all(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """A result a tensor."""
        found = [
            F.linear(x, weight(), None if bias is None else bias.float())
            for weight, bias in zip(self._weights, self._bias, strict=True)
        ]
        return found[0].split(self._rows, dim=-1) if len(self._rows) > 1 else found

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The result of a matrix of one tensor."""
        (found,) = self.all(x)
        return found


def linear(parameters: Parameters, name: str, *, expert: int | None = None) -> Linear:
    """The matrix of that name, or the one of an expert."""
    matrix = parameters.slices.matrices[name]

    def stored(suffix: str) -> torch.Tensor:
        whole = parameters[f"{name}.{suffix}"]
        return whole if expert is None else whole[expert]

    match matrix.format:
        case Format.PLAIN:
            wide: Wide = stored("weight").float
        case Format.FP8:
            wide = _fp8(matrix, stored("weight"), stored("weight_scale_inv"))
        case Format.NVFP4:
            wide = _nvfp4(matrix, stored("weight"), stored("weight_scale"), stored("weight_scale_2"))
    return Linear([wide], [parameters.find(name + ".bias")], matrix.rows)


def _fp8(matrix: Matrix, weight: torch.Tensor, scale: torch.Tensor) -> Wide:
    high, wide = matrix.block
    blocks = [-(-rows // high) for rows in matrix.rows]  # those of each tensor begin anew

    def widened() -> torch.Tensor:
        parts = zip(scale.float().split(blocks), matrix.rows, strict=True)
        tall = torch.cat([part.repeat_interleave(high, dim=0)[:rows] for part, rows in parts])
        return weight.float() * tall.repeat_interleave(wide, dim=1)[:, : matrix.columns]

    return widened


def _nvfp4(matrix: Matrix, weight: torch.Tensor, scale: torch.Tensor, scale_2: torch.Tensor) -> Wide:
    codes = torch.tensor([*_E2M1, *(-value for value in _E2M1)], device=weight.device)

    def widened() -> torch.Tensor:
        pairs = torch.stack((weight & 15, weight >> 4), dim=-1).long()  # the low half comes first
        values = codes[pairs].reshape(weight.shape[0], -1, matrix.block[1])
        parts = zip(scale.float().split(matrix.rows), scale_2, strict=True)
        scales = torch.cat([part * all_over for part, all_over in parts])
        return (values * scales[:, :, None]).reshape(weight.shape[0], -1)

    return widened
