"""Where versions live: one port (`base`), adapters named for what they adapt, and wrappers of the same interface, one
concern each."""
