"""A text classifier of one's own: vocabulary, training, card."""
