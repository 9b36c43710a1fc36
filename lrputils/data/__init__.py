"""Loading texts and images: from the package, a folder, a file or the hub."""
