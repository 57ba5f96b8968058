"""Training tables of logs: impressions joined with outcomes and features, partition by partition."""
