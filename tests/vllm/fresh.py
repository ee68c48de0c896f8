"""Greedy tokens of checkpoint folders, each from a vLLM of its own without Syncline: `fresh.py RANKS <prompts as JSON> FOLDER…`.

Prints one JSON list a folder: the tokens of each prompt.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

TOKENS = 12


def main(ranks: int, prompts: list[list[int]], folders: list[str]) -> None:
    vllm: Any = importlib.import_module("vllm")
    drawn = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    for folder in folders:
        engine = vllm.LLM(
            model=folder,
            tensor_parallel_size=ranks,
            dtype="bfloat16",
            max_model_len=2048,
            enforce_eager=True,
            skip_tokenizer_init=True,
        )
        told = [engine.generate({"prompt_token_ids": ids}, drawn, use_tqdm=False)[0].outputs[0] for ids in prompts]
        print("TOKENS", json.dumps([list(output.token_ids) for output in told]), flush=True)
        engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
