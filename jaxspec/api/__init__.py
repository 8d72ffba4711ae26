"""The public functions that generate text: a call, and the tuner that makes its open choices."""
