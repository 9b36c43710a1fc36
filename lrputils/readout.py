"""Which number is explained, and at which tensor the relevance is read."""
