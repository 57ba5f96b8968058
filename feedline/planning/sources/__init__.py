"""The plan of several sources: a plan of each, and the arithmetic that puts their rows into every step."""
