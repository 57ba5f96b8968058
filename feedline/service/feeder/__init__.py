"""The feeder of a host: a session per trainer, whose blocks are computed ahead and whose steps are cut into slots."""
