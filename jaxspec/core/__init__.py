"""The base of every other package: configs, pytrees, trees, sampling, KV cache and `Params`."""
