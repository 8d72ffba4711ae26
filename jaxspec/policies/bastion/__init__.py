"""BASTION's controller: choose the rows of a round by expected tokens over predicted time."""
