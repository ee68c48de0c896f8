"""nvCOMP on the XOR mask of the same steps, where its wheel (nvidia-nvcomp-cu12 or -cu13) is installed: `python bench/gpu_peers.py`.

What a receiver of dense masks pays on the device: expand the mask, then XOR it into the weights. Times are CUDA events around nvCOMP's own
call, scaled from a mask of a few GB; the mask is of distinct frames, so that nothing repeats within a window.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpu import milliseconds, require_gpu
from gpu_decode import SHARE_GB, Pair, adam_like, laid_out, packed_codes

ALGORITHMS = ("LZ4", "Zstd", "ANS", "Bitcomp")
DISTINCT = 128


def mask_of(pairs: list[Pair], gigabytes: float) -> tuple[torch.Tensor, int]:
    """Bytes of the XOR mask, and how many units changed."""
    old, new = (laid_out([pair[side] for pair in pairs], bands=False).to("cuda") for side in (0, 1))
    flips = old ^ new
    copies = max(int(gigabytes * 1e9) // (flips.numel() * flips.element_size()), 1)
    return flips.repeat(copies).view(torch.uint8), copies * int((flips != 0).sum())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    require_gpu()
    try:
        from nvidia import nvcomp  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    except ImportError:
        sys.exit("nvCOMP is not installed: pip install nvidia-nvcomp-cu13 (or -cu12), and run this again")
    print(torch.cuda.get_device_name(), "nvCOMP", nvcomp.__version__, flush=True)
    workloads: dict[str, Callable[[], list[Pair]]] = {
        "bf16": lambda: [adam_like(6e-7, seed) for seed in range(DISTINCT)],
        "nvfp4": lambda: [packed_codes(0.00085, seed) for seed in range(DISTINCT)],
    }
    rows: list[dict[str, object]] = []
    for name, make in workloads.items():
        mask, changed = mask_of(make(), args.gigabytes)
        live = torch.zeros_like(mask).view(torch.int64)
        scale = SHARE_GB / (mask.numel() / 1e9)
        xor = milliseconds(lambda live=live, mask=mask: live.bitwise_xor_(mask.view(torch.int64)))
        print(
            f"\n{name}: a mask of {mask.numel() / 1e9:.2f} GB, {changed / 1e6:.1f} M changes; "
            f"dense XOR {xor * scale:.1f} ms at {SHARE_GB} GB"
        )
        for algorithm in ALGORITHMS:
            codec = nvcomp.Codec(algorithm=algorithm)
            source = nvcomp.as_array(mask)
            packed = codec.encode(source)
            bits = 8 * packed.buffer_size / changed
            if not torch.equal(torch.as_tensor(codec.decode(packed), device="cuda").view(torch.uint8).view(-1), mask):
                raise SystemExit(f"{algorithm} did not bring the mask back")
            encode = milliseconds(lambda codec=codec, source=source: codec.encode(source), 3) * scale
            decode = milliseconds(lambda codec=codec, packed=packed: codec.decode(packed), 3) * scale
            print(
                f"  {algorithm:<8} {bits:7.1f} bits a change  encode {encode:7.1f} ms  decode {decode:7.1f} ms  + XOR {xor * scale:.1f} ms",
                flush=True,
            )
            rows.append({
                "workload": name, "codec": f"XOR mask + nvCOMP {algorithm}", "bits_a_change": round(bits, 2),
                f"encode_ms_at_{SHARE_GB}_gb": round(encode, 1), f"decode_ms_at_{SHARE_GB}_gb": round(decode, 1),
                f"xor_ms_at_{SHARE_GB}_gb": round(xor * scale, 1), "gigabytes": round(mask.numel() / 1e9, 2),
            })  # fmt: skip
        del mask, live
        torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
