"""From encoded rows to the trainer: the schedule, the batch layout, the ring, the dataset."""
