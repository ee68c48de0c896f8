"""The `context` codec, the commit's scatter and the digest on a GPU: Triton kernels, each beside a plain torch reference.

They know integers, frame geometry and the clock coder: no store, no chunk, no tensor names. Every kernel runs on the caller's current
stream, never waits for it, and takes its scratch from the caller. Without a GPU the same kernels run in Triton's interpreter on CPU
tensors (TRITON_INTERPRET=1), which is how the test suite proves them. Importing a module of this package loads torch and Triton.
"""
