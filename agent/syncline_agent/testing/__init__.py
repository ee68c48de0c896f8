"""Parts for tests of what stands on an arm; importable by every test."""
