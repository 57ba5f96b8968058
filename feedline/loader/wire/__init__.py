"""Typed messages between processes, and the codec that packs and checks all of them."""
