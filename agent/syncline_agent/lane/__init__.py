"""What the agent tells a gateway about versions of tokens: SOCKET.md is the contract."""
