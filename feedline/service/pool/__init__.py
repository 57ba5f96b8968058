"""Worker processes on the feeder's host: how they start, compute blocks, and hand them over in shared memory."""
