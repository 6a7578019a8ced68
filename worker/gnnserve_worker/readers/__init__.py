"""Readers of checkpoints: from the names and shapes of a file's tensors to a network that is listed layer by layer.

`files.py` takes the tensors out of a file, `kinds.py` lists the modules that are recognised, `description.py` finds
them, `convolutions.py` and `parts.py` say what each becomes in a revision, and `arrangement.py` puts them in order.
`reading.py` describes a file of which nothing else is known, with what it cannot tell, and `matching.py` takes the
tensors for a network that is stated. All of it is pure, and needs no torch.
"""
