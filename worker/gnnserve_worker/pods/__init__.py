"""What runs in the pods that the operator makes: entry points, and following the routing that it declares."""
