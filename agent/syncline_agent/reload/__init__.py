"""Serving an engine by its own reload route, for engines that hold no arm or whose layout the arm refuses.

The version is materialized whole on the node's disk, the engine is told to load it, and what it then holds is proven
where the engine says enough of it. It costs a reload a version; `apply_path` says so.
"""
