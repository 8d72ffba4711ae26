"""What a serving engine learns: the costs of its rounds, and where drafting pays."""
