"""What a reader sees: tables, claims, figures and heat maps."""
