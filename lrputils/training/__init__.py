"""A text classifier of one's own: vocabulary, pretraining if asked for, fine-tuning, card."""
