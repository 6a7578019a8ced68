"""Turns a manifest into a published revision."""

import os

# Before anything here loads torch: its OpenMP threads spin between operations by default, and with another busy process
# on the machine a step of training then takes twenty times as long. Waiting quietly costs an idle machine little.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
