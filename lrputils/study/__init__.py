"""What the chapters measure on a classifier, over the texts of a data set."""
