"""The drafters that recipes of policies take unless they are told another."""

# One whose rounds take a step per token, so that a policy can choose how many.
STEPWISE = "eagle3"
# One whose rounds draft blocks, so that a policy can choose their size.
BLOCKS = "dflash"
