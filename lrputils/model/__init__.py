"""A classifier, its inputs, and what every supported family calls its parts."""
