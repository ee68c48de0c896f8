"""Greedy tokens of checkpoint folders, each from a vLLM of its own without Syncline: `fresh.py`, asked by lines of JSON.

A line asks for one folder: {"folder", "prompts", "ranks", "bound", "adapter"}; the answer is a line `TOKENS <JSON>`: by
model ("m", and "adapter" where one is named) the tokens of each prompt. vLLM is imported once, however many are asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

TOKENS = 12
LONGEST = 131072


def draw(vllm: Any, asked: dict[str, Any]) -> dict[str, list[list[int]]]:
    os.environ |= asked["bound"]
    drawn = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    models: dict[str, Any] = {"m": None}
    if asked["adapter"]:
        lora: Any = importlib.import_module("vllm.lora.request")
        models["adapter"] = lora.LoRARequest("adapter", 1, asked["adapter"])
    engine = vllm.LLM(
        model=asked["folder"],
        tensor_parallel_size=asked["ranks"],
        dtype="bfloat16",
        max_model_len=LONGEST,
        max_num_seqs=16,
        enforce_eager=True,
        skip_tokenizer_init=True,
        enable_lora=bool(asked["adapter"]),
    )

    def tokens(prompt: list[int], adapter: Any) -> list[int]:
        (told,) = engine.generate({"prompt_token_ids": prompt}, drawn, use_tqdm=False, lora_request=adapter)
        return list(told.outputs[0].token_ids)

    found = {name: [tokens(prompt, adapter) for prompt in asked["prompts"]] for name, adapter in models.items()}
    engine.llm_engine.engine_core.shutdown()
    return found


def main() -> None:
    vllm: Any = importlib.import_module("vllm")
    for line in sys.stdin:
        print("TOKENS", json.dumps(draw(vllm, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
