"""Rules with a few constants that stop drafting, without training: DDD, SVIP and GammaTune."""
