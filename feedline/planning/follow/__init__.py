"""What the epochs of a followed table read: decided once at each epoch's border, and kept in work_dir."""
