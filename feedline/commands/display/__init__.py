"""What commands show while they run, and tables that several of them print."""
