"""Checkpoints on disk: servable safetensors folders that know their version, are patched through a journal, and are made
from a store. Also the reading of folders that a trainer writes.
"""

from syncline.checkpoint.advancing import NODE_POINTS, PUBLISHER_POINTS, AdvancePoints
from syncline.checkpoint.checkpoint import Checkpoint
from syncline.checkpoint.download import Progress
from syncline.checkpoint.folder import WeightFolder, table_of_folder
from syncline.checkpoint.headers import Header, StoredTensor, header_bytes, read_safetensors_header
from syncline.checkpoint.mapped import let_go
from syncline.checkpoint.marker import Marker, OwnFiles
from syncline.checkpoint.materialize import materialize
from syncline.checkpoint.ties import Tie, declared_ties

__all__ = [
    "NODE_POINTS",
    "PUBLISHER_POINTS",
    "AdvancePoints",
    "Checkpoint",
    "Header",
    "Marker",
    "OwnFiles",
    "Progress",
    "StoredTensor",
    "Tie",
    "WeightFolder",
    "declared_ties",
    "header_bytes",
    "let_go",
    "materialize",
    "read_safetensors_header",
    "table_of_folder",
]
