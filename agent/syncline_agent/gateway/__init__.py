"""The gateway in front of one engine: requests say which version they accept, answers say which one each token came from."""
