"""Parts for tests against a real Kubernetes API server; importable by every test."""
