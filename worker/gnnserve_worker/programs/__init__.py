"""Programs that people bring: what they are given, which are allowed, and the processes that they run in.

`contract.py` lays out the inputs, `allowed.py` reads a file before it is run, `runner.py` runs it in a process of its
own (`process.py`, forked by `fork_server.py`), and `race.py` runs it again and again. `models/program.py` is the
network made of these.
"""
