"""`python -m syncline_operator.api FOLDER` writes the CustomResourceDefinitions there."""

from __future__ import annotations

import sys
from pathlib import Path

from syncline_operator.api.crds import write

if __name__ == "__main__":
    write(Path(sys.argv[1]))
