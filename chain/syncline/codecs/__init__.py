"""Frame codecs: changed bits <-> bytes. Each knows one frame's contiguous units and nothing else; `registry` maps ids to them."""
