"""How many workers a feeder's trainers need, and what gives them as many."""
