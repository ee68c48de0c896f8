"""Products with weights that stay as they are stored: what is FP8 or NVFP4 in memory is widened for one product, and
forgotten.

A matrix looks at the memory it is given each time, so bits that were changed in place are those of the next product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn import functional as F

from syncline_agent.reference.formats import Format
from syncline_agent.reference.parameters import Parameters
from syncline_agent.reference.pieces import Matrix


class Weight(Protocol):
    """A matrix in float32, made when asked for."""

    rows: int

    def __call__(self) -> torch.Tensor: ...

    def pick(self, rows: torch.Tensor) -> torch.Tensor:
        """Only these rows [..., columns]."""
        ...


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Linear:
    """x @ weight.T + bias, the result cut where `rows` of one tensor end and those of the next begin."""

    def __init__(
        self,
        weights: Sequence[Callable[[], torch.Tensor]],
        bias: Sequence[torch.Tensor | None],
        rows: Sequence[int] = (),
    ) -> None:
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
    slices, bias = parameters.slices, parameters.find(name + ".bias")
    if name not in slices.apart:
        return Linear([weight(parameters, name, expert=expert)], [bias], slices.matrices[name].rows)
    names = slices.apart[name][expert or 0]
    found = [weight(parameters, part) for part in names]
    rows = [slices.matrices[part].rows[0] for part in names]
    return Linear(found, [None] * len(names) if bias is None else bias.split(rows))


def weight(parameters: Parameters, name: str, *, expert: int | None = None) -> Weight:
    """The weights of that matrix, or of one expert's."""
    matrix = parameters.slices.matrices[name]

    def part(role: str) -> torch.Tensor:
        whole = parameters[f"{name}.{role}"]
        return whole if expert is None else whole[expert]

    scales = [part(role) for role in matrix.scales]
    match matrix.format:
        case Format.PLAIN:
            return Plain(part("weight"))
        case Format.FP8:
            return _Fp8(matrix, part("weight"), *scales)
        case Format.NVFP4 | Format.NVFP4_DIVIDED:
            return _Nvfp4(matrix, part("weight"), *scales)


class Plain:
    """Weights that are floats."""

    def __init__(self, stored: torch.Tensor) -> None:
        self._stored = stored
        self.rows = stored.shape[0]

    def __call__(self) -> torch.Tensor:
        return self._stored.float()

    def pick(self, rows: torch.Tensor) -> torch.Tensor:
        return F.embedding(rows, self._stored).float()


class _Fp8:
    """Codes, and a scale a block, a row or a tensor."""

    def __init__(self, matrix: Matrix, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self._codes, self._scale = codes, scale.reshape(scale.shape[0], -1)
        self._wide, self._columns = matrix.block[1], matrix.columns
        self._of_row = _scale_of_row(matrix.rows, matrix.block[0], codes.device)
        self.rows = codes.shape[0]

    def __call__(self) -> torch.Tensor:
        return self._widened(self._codes, self._of_row)

    def pick(self, rows: torch.Tensor) -> torch.Tensor:
        codes = self._codes.view(torch.uint8)[rows].view(self._codes.dtype)  # few devices look bytes of FP8 up
        return self._widened(codes, self._of_row[rows])

    def _widened(self, codes: torch.Tensor, of_row: torch.Tensor) -> torch.Tensor:
        scale = self._scale[of_row].float()
        if scale.shape[-1] > 1:
            scale = scale.repeat_interleave(self._wide, dim=-1)[..., : self._columns]
        return codes.float() * scale


class _Nvfp4:
    """Two codes a byte, a scale for each sixteen of them, and one for the whole tensor."""

    def __init__(self, matrix: Matrix, pairs: torch.Tensor, scale: torch.Tensor, all_over: torch.Tensor) -> None:
        self._pairs, self._scale, self._all_over = pairs, scale, all_over
        self._of_row = _scale_of_row(matrix.rows, 0, pairs.device)
        self._values = torch.tensor([*_E2M1, *(-value for value in _E2M1)], device=pairs.device)
        self._together = matrix.block[1]
        self._divided = matrix.format is Format.NVFP4_DIVIDED
        self.rows = pairs.shape[0]

    def __call__(self) -> torch.Tensor:
        return self._widened(self._pairs, self._scale, self._of_row)

    def pick(self, rows: torch.Tensor) -> torch.Tensor:
        scale = self._scale.view(torch.uint8)[rows].view(self._scale.dtype)
        return self._widened(self._pairs[rows], scale, self._of_row[rows])

    def _widened(self, pairs: torch.Tensor, scale: torch.Tensor, of_row: torch.Tensor) -> torch.Tensor:
        codes = torch.stack((pairs & 15, pairs >> 4), dim=-1).long()  # the low half comes first
        values = self._values[codes].reshape(*pairs.shape[:-1], -1, self._together)
        all_over = self._all_over[of_row][..., None]
        scales = scale.float() / all_over if self._divided else scale.float() * all_over
        return (values * scales[..., None]).flatten(-2)


def _scale_of_row(rows: Sequence[int], high: int, device: torch.device) -> torch.Tensor:
    """Which row of the scales is each row's, where `high` rows share one (0: all of a tensor); each tensor's begin anew."""
    found: list[torch.Tensor] = []
    first = 0
    for of_tensor in rows:
        per = high or max(1, of_tensor)
        found.append(first + torch.arange(of_tensor, device=device) // per)
        first += -(-of_tensor // per)
    return torch.cat(found)
