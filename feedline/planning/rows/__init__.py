"""The rows that splits keep, that steps hold, and that a run has delivered."""
