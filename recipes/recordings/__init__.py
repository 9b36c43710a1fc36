"""What recorded runs measure that no verb of the package does: one module an experiment."""
