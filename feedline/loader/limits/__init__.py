"""What limits a run: rates of its stages, bounds of its resources, verdict and advice. Pure."""
