"""Deltas made and taken where the weights are: on a GPU. The only part of `delta` that knows torch; imported by those who have tensors.

`encoding` makes chunks from tensors in device memory; `staging` decodes a delta against them and commits it. What a kernel does not take
(units of eight bytes, other codecs, dense frames) goes through the host, frame by frame.
"""
