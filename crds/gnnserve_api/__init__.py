"""The contract: what a user may ask, and what worker, operator and command line tell each other.

Types and pure functions on them only; no kopf, no torch, no HTTP. Everything else imports this package and it
imports none of them.
"""
