"""The `status` of both resources: its types, and the reasons that its conditions give."""
