"""Train the learned policies other than LTD's: labels, heads, BlockPilot, the regression, and
searches over constants.
"""
