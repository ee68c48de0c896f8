"""The demo: a real, small, asynchronous RL loop whose rollouts come from engines that Syncline keeps at the newest weights."""
