"""The certificates of a cluster: made, checked before they are used, and what a refused connection means."""
