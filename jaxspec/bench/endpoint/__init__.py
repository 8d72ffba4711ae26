"""Measure any OpenAI endpoint as its clients see it: latencies and throughput under a load."""
