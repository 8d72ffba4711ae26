"""Rules of a few constants that stop drafting, without training: DDD, SVIP and GammaTune."""
