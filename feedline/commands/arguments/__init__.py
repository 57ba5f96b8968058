"""The arguments that commands share, and how a shell completes them."""
