"""The Kubernetes side: what TrainingRun and RolloutPool are, and what follows from them. No weight bytes, no store keys.

Importing it loads no client of Kubernetes.
"""
