"""The optional compiled kernel: moving rows of columns without the interpreter's lock."""
