"""Studies of SpecBlock as its paper has it: trees, blocks, rank classes, recipes."""
