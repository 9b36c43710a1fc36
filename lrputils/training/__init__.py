"""Training the text classifier that the package carries: vocabulary, pretraining, fine-tuning."""
