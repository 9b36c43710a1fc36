"""Every session of pytest holds the tests that ran against the keep-list of `tests/net/`."""

pytest_plugins = ["tests.net.census"]
