"""`syncline`: one command over the library, the distributor and the agent. It holds no logic of theirs."""
