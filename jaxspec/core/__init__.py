"""What every other package builds on: configs, pytrees, tree algebra, sampling, the KV cache and
`Params`.
"""
