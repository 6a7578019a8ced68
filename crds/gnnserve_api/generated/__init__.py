"""Files in the tree that are generated from the types: both CRDs, docs/manifest.md, docs/capabilities.md."""
