"""A spec and a table to a plan: schedules, agreement of ranks, rebase."""
