"""Where a publisher's own base is kept, from what the trainer named. Rejected, with what to name instead, for what cannot be."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Literal

from syncline.errors import Rejected
from syncline_distributor.bases import Base, MemoryBase

BaseMemory = Literal["device", "host"]
"""Memory of the device, or of the host: pinned, so that the device reads it as it encodes."""


def own_base(
    device: str | None, base_memory: BaseMemory | None, executor: Executor | None, *, given: Base | None = None
) -> Base:
    """In plain host memory without a device; else in the device's, unless the host's was named. One that was `given` stands."""
    if base_memory not in (None, "device", "host"):
        raise Rejected(f"base_memory is 'device' or 'host', not {base_memory!r}")
    if given is not None:
        if device is not None or base_memory is not None:
            raise Rejected(
                "a base that is handed in is kept where it is; leave `device` and `base_memory` out, or `base`"
            )
        return given
    if device is None:
        if base_memory is not None:
            raise Rejected(
                f"base_memory {base_memory!r} says where the base of a device is kept; name a device, or leave it out"
            )
        return MemoryBase(executor=executor)
    try:  # torch and triton are for those who have a device
        from syncline_distributor.torch_weights import usable_device

        usable = usable_device(device)
        from syncline_distributor.device_base import DeviceBase
        from syncline_distributor.pinned_base import PinnedBase
    except ImportError as error:
        raise Rejected(
            f"device {device!r} needs torch and Triton ({error}); install torch's CUDA build, which brings both, "
            "or leave `device` out and the CPU encodes"
        ) from error
    return (PinnedBase if base_memory == "host" else DeviceBase)(usable, executor=executor)
