"""What a reader sees drawn: one module a subject, one function a figure; `title` is its message."""
