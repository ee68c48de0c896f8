"""Settings for every test: hypothesis draws the same examples in CI each time, and never judges by the clock."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("here", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
