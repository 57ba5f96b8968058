"""What limits a run, and what would change it: rates per stage, a bound, a verdict."""
