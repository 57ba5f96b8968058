"""The tensors of a batch over the bytes of its slot, on the host and on devices."""
