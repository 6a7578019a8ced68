"""Entry points of the pods that the operator makes."""
