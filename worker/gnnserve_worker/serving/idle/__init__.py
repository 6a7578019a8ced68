"""Work of the engine while no request waits."""
