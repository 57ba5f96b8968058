"""The files of a cache of computed columns: written, found, bounded in size, and looked after."""
