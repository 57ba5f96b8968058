"""`feedline explain`: what limits a run, what columns, ops and features cost, and what a change would gain."""
