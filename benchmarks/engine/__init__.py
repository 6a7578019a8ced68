"""The engine in process: shapes, the roofline, scaling, caches."""
