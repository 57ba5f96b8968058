"""A table written so that reading it is cheap, and the usage record that guides it."""
