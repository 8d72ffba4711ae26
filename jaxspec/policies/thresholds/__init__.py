"""Rules that stop drafting at a threshold, without training: DDD, SVIP and GammaTune."""
