"""The trainer's side: publishes versions and keeps their chain (anchors, skip deltas, retention). No engine here."""
