"""Look at tables and runs, beside them: imported by the command line alone, when one of its commands runs."""
