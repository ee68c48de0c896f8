"""Which pieces of which tensors one rank of a reference engine holds, and in what parameters they lie together.

Pure: a function of config, tensor table, rank and number of ranks. Loading and the arm's layout both follow from it, so
what is loaded is what is changed in place. Attention and MLPs are cut by heads and rows; kv heads that are fewer than ranks
are held by several; a layer's experts are dealt out whole, in order, or cut like any MLP; norms and routers are everywhere.
Queries, keys and values are one parameter, so are gate and up, and so is the same matrix of all experts of a layer, whether
the checkpoint has a tensor an expert or stacks them; but only where all of it is stored in one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.layout import shape_of
from syncline_agent.reference.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig
from syncline_agent.reference.experts import Stack, stack_of
from syncline_agent.reference.formats import FLOATS, Kept, Stored, stored
from syncline_agent.reference.pieces import Matrix, Parameter, Piece, Slices

VOCAB_MULTIPLE = 8
"""The rows of embedding and head are filled up to this much a rank, so that each rank has the same number."""


def slices(
    config: ModelConfig, table: TensorTable, *, rank: int = 0, ranks: int = 1, expert_parallel: bool = True
) -> Slices:
    """What rank `rank` of `ranks` holds. LayoutRefused, by name, for tensors that are not the config's and for a number of
    ranks that does not divide it."""
    return _Slicer(config, table, rank, ranks, expert_parallel).slices()


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows and columns, low and high, of a matrix of `of` rows and columns; of no rows, it is only looked at."""

    base: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    of: tuple[int, int]
    expert: int = 0
    """Of a stack."""
    stack: Stack | None = None

    @property
    def is_held(self) -> bool:
        return self.rows[0] < self.rows[1] and self.columns[0] < self.columns[1]


class _Slicer:
    def __init__(self, config: ModelConfig, table: TensorTable, rank: int, ranks: int, expert_parallel: bool) -> None:
        self._config, self._table = config, table
        self._rank, self._ranks = rank, ranks
        whole = expert_parallel or ranks == 1
        dealt = self._share(config.experts, "experts") if whole else config.experts
        self._cut_experts = not whole
        self._experts = range(dealt * rank, dealt * (rank + 1)) if whole else range(dealt)
        self._used: set[int] = set()
        self._parameters: dict[str, Parameter] = {}
        self._matrices: dict[str, Matrix] = {}
        self._apart: dict[str, list[list[str]]] = {}

    def slices(self) -> Slices:
        config = self._config
        heads = self._share(config.heads, "attention heads")
        if config.kv_heads % self._ranks and self._ranks % config.kv_heads:
            raise LayoutRefused(f"{self._ranks} ranks and {config.kv_heads} kv heads: neither divides the other")
        kv_heads = max(1, config.kv_heads // self._ranks)
        kv_rank = self._rank * config.kv_heads // self._ranks if self._ranks > config.kv_heads else self._rank
        embedding, head = EMBEDDING.removesuffix(".weight"), HEAD.removesuffix(".weight")
        tied = config.tied or self._table.index.get(HEAD, -1) == self._table.index.get(EMBEDDING)
        vocab = self._vocabulary([embedding] if tied else [embedding, head])
        for layer in range(config.layers):
            self._attention(f"model.layers.{layer}.", heads, kv_heads, kv_rank)
            self._mlp(layer)
        self._vector(FINAL_NORM, [(FINAL_NORM, 0, config.hidden, config.hidden)])
        unknown = [spec.name for i, spec in enumerate(self._table.tensors) if i not in self._used]
        if unknown:
            raise LayoutRefused(f"unknown tensors {unknown[:4]} for the config; they must fit")
        own = self._experts
        return Slices(self._parameters, self._matrices, self._apart, heads, kv_heads, vocab, own.start, len(own))

    def _share(self, number: int, what: str) -> int:
        if number % self._ranks:
            raise LayoutRefused(
                f"{number} {what} are not a multiple of {self._ranks} ranks; take another number of ranks"
            )
        return number // self._ranks

    def _vocabulary(self, names: Sequence[str]) -> range:
        """The rows of these matrices that this rank has room for."""
        config = self._config
        kinds = [self._stored(_Part(name, (0, 0), (0, 0), (config.vocab, config.hidden))) for name in names]
        high = [kept.unit[0] for kind in kinds for kept in kind.kept if kept.unit and kept.unit[0]]
        multiple = lcm(VOCAB_MULTIPLE, *high)  # a block of rows that share a scale is not cut
        each = -(-config.vocab // (multiple * self._ranks)) * multiple
        rows = range(each * self._rank, each * (self._rank + 1))
        held = (rows.start, min(rows.stop, config.vocab)) if rows.start < config.vocab else (0, 0)
        for name, kind in zip(names, kinds, strict=True):
            part = _Part(name, held, (0, config.hidden), (config.vocab, config.hidden))
            self._together(name, kind, [[part]], height=each)
        return rows

    def _attention(self, prefix: str, heads: int, kv_heads: int, kv_rank: int) -> None:
        config, own = self._config, prefix + "self_attn."
        wide = (0, config.hidden)
        parts: list[_Part] = []
        biases: list[tuple[str, int, int, int]] = []
        for name, held, of, place in (
            ("q", heads, config.heads, self._rank),
            ("k", kv_heads, config.kv_heads, kv_rank),
            ("v", kv_heads, config.kv_heads, kv_rank),
        ):
            low, high = (at * held * config.head_dim for at in (place, place + 1))
            whole = of * config.head_dim
            parts.append(_Part(f"{own}{name}_proj", (low, high), wide, (whole, config.hidden)))
            biases.append((f"{own}{name}_proj.bias", low, high, whole))
        self._matrix(own + "qkv_proj", [parts])
        if config.qkv_bias:
            self._vector(own + "qkv_proj.bias", biases)
        if config.qk_norm:
            for name in (f"{own}q_norm.weight", f"{own}k_norm.weight"):
                self._vector(name, [(name, 0, config.head_dim, config.head_dim)])
        cut, whole = heads * config.head_dim, config.heads * config.head_dim
        columns = (self._rank * cut, (self._rank + 1) * cut)
        self._matrix(own + "o_proj", [[_Part(own + "o_proj", wide, columns, (config.hidden, whole))]])
        for name in (prefix + "input_layernorm.weight", prefix + "post_attention_layernorm.weight"):
            self._vector(name, [(name, 0, config.hidden, config.hidden)])

    def _mlp(self, layer: int) -> None:
        config, prefix = self._config, f"model.layers.{layer}.mlp."
        expert_layer = config.has_experts(layer)
        stack = stack_of(config, self._table, prefix) if expert_layer else None
        ups: list[list[_Part]] = []
        downs: list[list[_Part]] = []
        for number, (mlp, width) in enumerate(config.mlps(layer)):
            if expert_layer and not self._cut_experts:
                held = (0, width) if number in self._experts else (0, 0)
            else:
                cut = self._share(width, "rows of an MLP")
                held = (self._rank * cut, (self._rank + 1) * cut)
            every = (0, config.hidden)
            if stack is None:
                ups.append([_Part(f"{mlp}{n}_proj", held, every, (width, config.hidden)) for n in ("gate", "up")])
            else:
                below = (held[0] + width, held[1] + width)  # up's rows stand below gate's
                of = (2 * width, config.hidden)
                ups.append([_Part(stack.gate_up, rows, every, of, number, stack) for rows in (held, below)])
                mlp = stack.prefix
            down = every if held[1] else (0, 0)
            downs.append([_Part(mlp + "down_proj", down, held, (config.hidden, width), number, stack)])
        if expert_layer:
            router = prefix + "gate.weight"
            index, spec = self._expect(router, (config.experts, config.hidden))
            _check_float(spec)
            whole = (config.experts, config.hidden)
            self._parameters[router] = Parameter(spec.dtype, whole, [Piece(index, (0, 0), whole, (0, 0), (0, 1))])
            prefix += "experts."
        self._matrix(prefix + "gate_up_proj", ups, stacked=expert_layer)
        self._matrix(prefix + "down_proj", downs, stacked=expert_layer)

    # --- parameters of pieces --------------------------------------------------------------------------------------

    def _expect(self, name: str, shape: tuple[int, ...]) -> tuple[int, TensorSpec]:
        index = self._table.index.get(name)
        if index is None:
            raise LayoutRefused(f"missing tensors: the config asks for {name} {list(shape)}")
        spec = self._table.tensors[index]
        if shape_of(spec) != shape:
            raise LayoutRefused(f"{name} is {spec.dtype} {spec.shape}, the config asks for {list(shape)}")
        self._used.add(index)
        return index, spec

    def _vector(self, name: str, parts: Sequence[tuple[str, int, int, int]]) -> None:
        """Elements low to high of tensors of one dimension, behind each other."""
        pieces: list[Piece] = []
        at, kinds = 0, set[str]()
        for tensor, low, high, of in parts:
            index, spec = self._expect(tensor, (of,))
            _check_float(spec)
            kinds.add(spec.dtype)
            pieces.append(Piece(index, (low,), (high - low,), (at,), (0,)))
            at += high - low
        if len(kinds) != 1:
            raise LayoutRefused(f"{name} is made of tensors of different dtypes {sorted(kinds)}; it is one in memory")
        self._parameters[name] = Parameter(kinds.pop(), (at,), pieces)

    def _stored(self, part: _Part) -> Stored:
        block, stacked = self._config.weight_block, part.stack is not None
        return stored(self._table, part.base, part.of, block=block, stacked=stacked)

    def _matrix(self, name: str, stack: Sequence[Sequence[_Part]], *, stacked: bool = False) -> None:
        """Parts below each other; `stacked`: those of each expert that is held, one behind the other. What is not stored in
        one way is not in one parameter."""
        kinds = {part.base: self._stored(part) for parts in stack for part in parts}
        first = stack[0][0]
        if len(set(kinds.values())) == 1:
            self._together(name, kinds[first.base], stack, stacked=stacked)
            return
        self._apart[name] = [[part.base for part in parts] for parts in stack if parts[0].is_held]
        for part in (part for parts in stack for part in parts):
            self._together(part.base, kinds[part.base], [[part]])

    def _together(
        self,
        name: str,
        kind: Stored,
        stack: Sequence[Sequence[_Part]],
        *,
        stacked: bool = False,
        height: int | None = None,
    ) -> None:
        """One matrix of parts that are stored in one way. `height`: its rows, the last ones of nothing."""
        for kept in kind.kept:
            pieces: list[Piece] = []
            place, shape = 0, (0, 0)
            for parts in stack:
                down = 0
                for part in parts:
                    index, box = self._box(kept, part)
                    if not part.is_held:
                        continue
                    pieces.append(_piece(index, box, part, (place, down) if stacked else (down,)))
                    down += box[0][1] - box[0][0]
                    shape = (down, *(high - low for low, high in box[1:]))
                place += 1 if down else 0
            if height is not None:
                part = stack[0][0]
                shape = tuple(high for _, high, _ in _spans(kept, (0, height), part.columns, (height, part.of[1])))
            if pieces or height is not None:
                whole = (place, *shape) if stacked else shape
                self._parameters[f"{name}.{kept.role}"] = Parameter(kept.dtype, whole, pieces)
        parts = next((parts for parts in stack if parts[0].is_held), stack[0])
        rows = tuple(part.rows[1] - part.rows[0] for part in parts) if height is None else (height,)
        columns = parts[0].columns[1] - parts[0].columns[0]
        scales = kind.kept[1 : 1 + kind.scales]
        block = (*scales[0].unit, 0, 0) if scales else (1, 1)
        roles = tuple(kept.role for kept in scales)
        self._matrices[name] = Matrix(kind.format, rows, columns, roles, (block[0], block[1]))

    def _box(self, kept: Kept, part: _Part) -> tuple[int, list[tuple[int, int]]]:
        """The tensor that is kept of the part's matrix, and which of its units are the part's, low and high, along rows and
        columns."""
        tensor = part.base + kept.name
        spans = _spans(kept, part.rows, part.columns, part.of)
        shape = tuple(whole for _, _, whole in spans)
        index, _ = self._expect(tensor, shape if part.stack is None else part.stack.shape(shape))
        for what, (low, high), per, of in zip(
            ("rows", "columns"), (part.rows, part.columns), kept.unit, part.of, strict=False
        ):
            if per and (low % per or (high % per and high != of)):
                raise LayoutRefused(
                    f"{tensor}: {self._ranks} ranks would cut {what} {low} to {high}, which are no whole blocks of"
                    f" {per}; take fewer ranks"
                )
        return index, [(low, high) for low, high, _ in spans]


def _spans(
    kept: Kept, rows: tuple[int, int], columns: tuple[int, int], of: tuple[int, int]
) -> list[tuple[int, int, int]]:
    """Units, low and high, that stand for these rows and columns, and how many there are, along each dimension."""
    if not kept.unit:
        return [(0, 1, 1)]
    return [
        (low // per, -(-high // per), -(-whole // per)) if per else (0, 1, 1)
        for per, (low, high), whole in zip(kept.unit, (rows, columns), of, strict=False)
    ]


def _piece(index: int, box: Sequence[tuple[int, int]], part: _Part, at: tuple[int, ...]) -> Piece:
    """The box of the tensor, its rows and columns along the last dimensions of the parameter, from `at` on."""
    start, size = tuple(low for low, _ in box), tuple(high - low for low, high in box)
    lead = len(at) - 1
    at = (*at, *(0 for _ in box[1:]))
    axes = tuple(range(lead, lead + len(box)))
    if part.stack is not None:
        axes = (0, *part.stack.order(axes))
        start, size = (part.expert, *part.stack.order(start)), (1, *part.stack.order(size))
    return Piece(index, start, size, at, axes)


def _check_float(spec: TensorSpec) -> None:
    if spec.dtype not in FLOATS:
        raise LayoutRefused(f"{spec.name} is {spec.dtype} {spec.shape}, a float of {', '.join(FLOATS)} was expected")
