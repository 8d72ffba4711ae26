"""How much to draft and to verify in a round: cost models, and rules that choose by them."""
