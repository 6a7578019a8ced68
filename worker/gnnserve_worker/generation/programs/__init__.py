"""Generation of revisions whose model is a program: read, held against expected scores, and made into variants."""
