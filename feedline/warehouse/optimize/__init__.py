"""A table written anew, and the usage record that guides it."""
