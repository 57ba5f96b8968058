"""What runs in the scheduler of a cluster that several jobs share: reports of feeders, and the answers to them."""
