"""Reinforcement learning of draft policies: recorded rounds, a replay environment, PPO, and LTD's
schedule.
"""
