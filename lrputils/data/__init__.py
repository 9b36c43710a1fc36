"""Loading texts: from the package, a folder, a file or the hub."""
