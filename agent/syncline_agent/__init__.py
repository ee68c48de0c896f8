"""The node's side: follows the chain, proves what it fetched and commits it into the engine. It never publishes."""
