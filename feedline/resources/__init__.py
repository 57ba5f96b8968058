"""What this machine gives a process: cores, memory, instructions and the C library."""
