"""How the operator talks with an API server: narrow, typed, every failure named.

The one place that knows the official client; nothing above it sees a request. Decides nothing about runs and pools.
"""
