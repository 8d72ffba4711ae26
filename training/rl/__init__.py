"""Reinforcement learning of draft policies: records, a replay environment, PPO, LTD's schedule."""
