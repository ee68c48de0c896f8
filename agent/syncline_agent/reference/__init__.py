"""The reference engine's model: a small Qwen2-shaped decoder in plain torch, its sampler and its tokenizer.

The demo, its trainer and the tests stand on these; they know nothing of versions, stores or requests. Nothing here
imports torch until `model` or `sampling` is imported.
"""
