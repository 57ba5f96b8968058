"""What a cache keeps of blocks: finished features of row groups, their names, and what is worth keeping."""
