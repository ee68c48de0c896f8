"""An engine's torch tensors as the memory that an arm changes: what of a loaded model computes, where probing found it, and
whether it lies on the host or on a device.

Only looks at what the model holds; refuses by name what is not where it was loaded to. On a host without an accelerator
nothing of one is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from syncline.checkpoint import Checkpoint
from syncline.errors import LayoutRefused
from syncline.wire.tiling import Tiling
from syncline_agent.arm.host_memory import HostMemory, Units
from syncline_agent.arm.layout import Layout, shape_of
from syncline_agent.arm.memory import Memory
from syncline_agent.arm.probing import Probed, attach

NAMED_MAX = 4


def tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Everything that the modules of a model hold: parameters, buffers and plain attributes. Adapters are no part of it."""
    for path, module in model.named_modules(remove_duplicate=True):
        if ".lora." in type(module).__module__:
            continue  # an adapter's own memory, around a layer that is a module of its own
        held: Mapping[str, Any] = {**vars(module), **module._parameters, **module._buffers}
        for name, value in held.items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{name}" if path else name, value


def storages_of(model: torch.nn.Module) -> set[int]:
    """Addresses of all memory that the model's tensors lie in."""
    return {t.untyped_storage().data_ptr() for _, t in tensors_of(model) if not t.is_meta}


def constants_of(model: torch.nn.Module, stores: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the model holds beside its stores, on their device: each piece of memory once."""
    known = {store.untyped_storage().data_ptr() for store in stores}
    found: list[torch.Tensor] = []
    for name, tensor in tensors_of(model):
        if tensor.is_meta or not tensor.numel() or "kv_cache" in name or tensor.device != stores[0].device:
            continue
        start = tensor.untyped_storage().data_ptr()
        if start not in known:
            known.add(start)
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            found.append(whole.set_(tensor.untyped_storage()))
    return found


def check_not_derived(model: torch.nn.Module, before: set[int]) -> None:
    """LayoutRefused when work on the loaded weights left tensors in memory that was not there `before`: what was computed
    from weights would not change with them."""
    new = [
        name
        for name, tensor in tensors_of(model)
        if not tensor.is_meta and tensor.numel() > 1 and tensor.untyped_storage().data_ptr() not in before
    ]
    if new:
        raise LayoutRefused(
            f"the engine computes {_few(new)} from loaded weights; a change of those would not reach it"
        )


def stores_of(model: torch.nn.Module, probed: Probed) -> list[torch.Tensor]:
    """The stores that were probed, where the model computes with them. LayoutRefused, by name, for those that are gone."""
    stores = attach(probed, (tensor for _, tensor in tensors_of(model)))
    gone = [store.name for store, found in zip(probed.stores, stores, strict=True) if found is None]
    if gone:
        raise LayoutRefused(f"the engine repacks {_few(gone)} after loading")
    return [store for store in stores if store is not None]


def memory_of(
    stores: Sequence[torch.Tensor], probed: Probed, checkpoint: Checkpoint, tiling: Tiling, *, alone: bool
) -> Memory:
    """The memory of a rank, which holds everything if it is `alone`. LayoutRefused by name."""
    table = checkpoint.table
    layout = Layout.of(table, probed.blocks)
    if alone and not layout.is_whole:
        held = [
            sum(b.high - b.low for b in bands) == (shape_of(spec)[bands[0].axis] if bands else spec.units)
            for spec, bands in zip(table.tensors, layout.bands, strict=True)
        ]
        absent = [spec.name for spec, whole in zip(table.tensors, held, strict=True) if not whole]
        why = "".join(f"; {name}: {trouble}" for name, trouble in list(probed.troubles.items())[:NAMED_MAX])
        raise LayoutRefused(f"the engine does not hold all of {_few(absent)}{why}")
    if probed.troubles:  # what is computed from weights would stay as it is when they change
        told = "; ".join(f"{name}: {trouble}" for name, trouble in list(probed.troubles.items())[:NAMED_MAX])
        raise LayoutRefused(f"the engine does not hold what it loads as it is loaded: {told}")
    return memory_of_stores(layout, tiling, stores, loaded=checkpoint.units)


def memory_of_stores(
    layout: Layout,
    tiling: Tiling,
    stores: Sequence[torch.Tensor],
    *,
    loaded: Callable[[str], Units] | None = None,
) -> Memory:
    """`stores`: flat integer tensors, in the layout's order; `loaded` as for HostMemory. LayoutRefused by name."""
    if all(store.device.type == "cpu" for store in stores):
        return HostMemory(layout, tiling, [host_units(store) for store in stores], loaded=loaded)
    from syncline_agent.arm.device_memory import DeviceMemory

    return DeviceMemory(layout, tiling, stores, loaded=loaded)


def host_units(integers: torch.Tensor) -> Units:
    """A CPU tensor of integers as unsigned units that share its memory."""
    array = integers.numpy()
    return array.view(np.dtype(f"<u{array.itemsize}"))


def _few(names: list[str]) -> str:
    return ", ".join(names[:NAMED_MAX]) + (f" and {len(names) - NAMED_MAX} more" if names[NAMED_MAX:] else "")
