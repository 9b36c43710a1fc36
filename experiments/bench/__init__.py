"""Speed, measured side by side with plain loops and other libraries."""
