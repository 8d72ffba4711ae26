"""How well a drafter's confidence predicts what is accepted."""
