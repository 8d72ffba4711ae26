"""Training of learned policies other than LTD's: labels, heads, BlockPilot, regression, and
searches over constants.
"""
