"""Networks that are listed layer by layer (`crds/gnnserve_api/files/layers.py`), computed in the worker's own process.

`shapes.py` says which tensors such a network has, what it reads of a sample, and what is wrong with a description.
`convolutions/` has one object for each kind of convolution, `dense.py` products, norms and activations, `network.py`
the network made of these, and `runner.py` runs it in place of a program's process.
"""
